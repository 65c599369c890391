"""Rendered gangs as files that a person can read; a change of the renderers is a diff of them."""

import pytest
import yaml

from k8s.render import primary, render

from .golden import CASES, FOLDER, text


@pytest.mark.parametrize("name", CASES)
def test_file_is_what_is_rendered(name):
    kept = (FOLDER / f"{name}.yaml").read_text()
    assert list(yaml.safe_load_all(kept)) == render(CASES[name])
    assert kept == text(CASES[name]), "stale: python -m tests.k8s.render.golden, and read the diff"


def test_no_file_is_left_over():
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(CASES)


@pytest.mark.shared
@pytest.mark.parametrize("name", CASES)
def test_the_api_server_takes_it(name, shared_data):
    from ..schemas import problems

    for obj in render(CASES[name]):
        assert problems(obj) == []
        obj["spec"]["foo"] = 1
        assert problems(obj) != []


@pytest.mark.parametrize("name", CASES)
def test_primary_has_the_status(name):
    kinds = {"jobset": "JobSet", "rayjob": "RayJob", "volcano": "Job"}
    assert primary(CASES[name])["kind"] == kinds[CASES[name].settings.backend]
