"""Of a list of wrong manifests by kind the lint finds each."""

from __future__ import annotations

import functools
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from k8s.lint import Violation, lint_objects, lint_schemas
from k8s.lint.schemas import Schemas
from k8s.render import render
from tests.k8s.admission import gang_of
from tests.k8s.lint.cases import Object, find, good, plain_job, put
from tests.k8s.lint.refused import WRONG, Wrong
from tests.k8s.lint.test_rules import JUNK
from tests.k8s.manifests import MANIFESTS, overlay
from tests.k8s.policies import plain
from tests.k8s.schemas import DATA

pytestmark = pytest.mark.shared
EKS = "eks-spot-h200"
SCHEMAS = Schemas(DATA)
"""Of these tests alone: rules that wrong manifests leave undecided are counted in it."""


def objects_of(backend: str) -> list[Object]:
    """With the component of that backend, which the overlay has of one alone."""
    if backend == "job":
        return deepcopy([*plain_job(gang_of(EKS)), *overlay(EKS)])
    objects = [*render(gang_of(EKS, backend=backend)), *overlay(EKS)]
    if backend != "jobset":
        objects += plain(MANIFESTS / "components" / backend)
    return deepcopy(objects)


@functools.cache
def before(backend: str) -> frozenset[Violation]:
    """Of the rules: a schema is asked of each object by itself."""
    return frozenset(lint_objects(objects_of(backend)))


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["jobset", "volcano", "rayjob"])
def test_nothing_is_refused_of_what_is_right(backend: str, shared_data: object) -> None:
    assert not [finding for finding in before(backend) if finding.severity == "error"]
    assert not lint_schemas(objects_of(backend), SCHEMAS)


@pytest.mark.parametrize("wrong", WRONG, ids=lambda w: f"{w.kind}: {w.what}")
def test_a_wrong_manifest_is_found(wrong: Wrong, shared_data: object) -> None:
    objects = objects_of(wrong.backend)
    changed = find(objects, wrong.kind, wrong.name)
    put(changed, wrong.path, wrong.value)
    new = {*lint_schemas([changed], SCHEMAS), *lint_objects(objects)} - before(wrong.backend)
    assert new


def test_the_list_is_of_many_kinds() -> None:
    assert len(WRONG) > 60
    assert len({wrong.kind for wrong in WRONG}) >= 18


@settings(max_examples=20, deadline=None)
@given(junk=JUNK, at=st.sampled_from(["metadata", "spec", "apiVersion", "kind"]))
@pytest.mark.parametrize("place", [lambda o: o, lambda o: o["spec"]], ids=["object", "spec"])
def test_no_manifest_brings_the_schemas_down(place: Callable[[Object], Any], junk: object, at: str) -> None:
    objects = good()
    for obj in objects:
        if "spec" in obj:
            place(obj)[at] = junk
    lint_schemas(objects, SCHEMAS)
