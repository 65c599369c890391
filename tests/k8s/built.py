"""The bases that are not of training, as kustomize builds them, and what labels in them select."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from .manifests import MANIFESTS, Object, Pods, of_kind
from .manifests import pods as pods_of

RUNS, PLATFORM, SERVING = "preference-tuning", "preference-tuning-platform", "preference-tuning-serving"
COMPONENT = "app.kubernetes.io/component"


@functools.cache
def objects_of(folder: Path) -> tuple[Object, ...]:
    """What `kubectl kustomize` makes of a base or an overlay. For reading: every test gets the same objects."""
    if shutil.which("kubectl") is None:
        pytest.skip("no kubectl to build the manifests with")
    built = subprocess.run(["kubectl", "kustomize", str(folder)], capture_output=True, text=True, check=True).stdout
    return tuple(yaml.safe_load_all(built))


def build(base: str) -> tuple[Object, ...]:
    return objects_of(MANIFESTS / "bases" / base)


def both() -> tuple[Object, ...]:
    return build("platform") + build("serving")


def named(objects: Sequence[Object], kind: str, name: str) -> Object:
    (result,) = (obj for obj in of_kind(objects, kind) if obj["metadata"]["name"] == name)
    return result


def pods(objects: Sequence[Object]) -> Iterator[Pods]:
    """With the bare name of their owner."""
    for pod in pods_of(objects):
        yield pod._replace(owner=pod.owner.rpartition("/")[2])


def selects(selector: Object, labels: Object) -> bool:
    """A label selector; empty selects everything."""
    exact = selector.get("matchLabels", {})
    among = selector.get("matchExpressions", [])
    assert all(expression["operator"] == "In" for expression in among)
    return all(labels.get(k) == v for k, v in exact.items()) and all(labels.get(e["key"]) in e["values"] for e in among)
