"""The values of Dagster's chart (manifests/helm), and an overlay without what the chart makes."""

from __future__ import annotations

import shutil
from pathlib import Path

import yaml

from .built import PLATFORM, RUNS, objects_of
from .manifests import MANIFESTS, Object

RELEASES = {"dagster": PLATFORM, "dagster-user-deployments": RUNS}
"""Helm's releases, by the chart's name, and their namespaces."""
INSTANCE: Object = yaml.safe_load((MANIFESTS / "bases" / "platform" / "dagster.yaml").read_text())
MADE = {
    f"Deployment {PLATFORM}/dagster-webserver", f"Service {PLATFORM}/dagster-webserver",
    f"Deployment {PLATFORM}/dagster-daemon", f"Deployment {RUNS}/dagster-code",
}  # fmt: skip
"""What stands in the chart's releases under the name that it has in the tree."""


def values(release: str) -> Object:
    return yaml.safe_load((MANIFESTS / "helm" / f"{release}.yaml").read_text())


def without_dagster(folder: Path, name: str) -> tuple[Object, ...]:
    """An overlay with the component, as k8s/README.md puts them together."""
    shutil.copytree(MANIFESTS, folder / "manifests")
    top = folder / "manifests" / "overlays" / "chart"
    top.mkdir()
    (top / "kustomization.yaml").write_text(f"resources: [../{name}]\ncomponents: [../../components/dagster-chart]\n")
    return objects_of(top)
