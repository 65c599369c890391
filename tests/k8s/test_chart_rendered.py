"""Dagster's chart with the values of manifests/helm: schema, objects, dagster.yaml.

DAGSTER_CHART is the chart's folder (`helm pull --untar`), and `helm` is in PATH; without them these tests are skipped.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from kubernetes_validate import latest_version
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from k8s.lint import lint_objects

from .built import COMPONENT, RUNS, named, pods
from .chart import INSTANCE, MADE, RELEASES, values, without_dagster
from .manifests import MANIFESTS, Object, dangling, idle_selectors, misnamed, name_of
from .schemas import known, problems
from .test_manifests import from_outside


@pytest.fixture(scope="module")
def chart() -> Path:
    if "DAGSTER_CHART" not in os.environ:
        pytest.skip("DAGSTER_CHART does not name the chart's folder (helm pull dagster --untar)")
    return Path(os.environ["DAGSTER_CHART"])


def merged(defaults: Any, given: Any) -> Any:
    """As Helm lays values over a chart's own: maps by key, everything else in whole."""
    if not isinstance(defaults, dict) or not isinstance(given, dict):
        return given
    return {key: merged(defaults.get(key), given[key]) if key in given else defaults[key] for key in defaults | given}


def definitions(uri: str) -> Resource[Any]:
    """Kubernetes' own, which the chart's schema names by an address."""
    assert uri.endswith("/_definitions.json")
    contents = schema_contents(f"kubernetes-json-schema/v{latest_version()}-local/_definitions.json", latest_version())
    return Resource.from_contents({**contents, "definitions": contents["$defs"]})


@pytest.mark.parametrize("release", RELEASES)
def test_the_chart_s_schema_takes_the_values(release: str, chart: Path) -> None:
    folder = chart if release == "dagster" else chart / "charts" / release
    schema = yaml.safe_load((folder / "values.schema.json").read_text())
    validator = jsonschema.Draft202012Validator(schema, registry=Registry(retrieve=definitions))
    defaults = yaml.safe_load((folder / "values.yaml").read_text())
    assert [error.message for error in validator.iter_errors(merged(defaults, values(release)))] == []
    broken = values(release) | (
        {"dagsterWebserver": {"replicaCount": "two"}} if release == "dagster" else {"deployments": [{}]}
    )
    assert list(validator.iter_errors(merged(defaults, broken)))


def without_nulls(node: Any) -> Any:
    """As an API server reads it: what is null is not given."""
    if isinstance(node, list):
        return [without_nulls(item) for item in node]
    if isinstance(node, dict):
        return {key: without_nulls(value) for key, value in node.items() if value is not None}
    return node


def rendered(chart: Path) -> list[Object]:
    """Both releases, each object in its release's namespace."""
    if shutil.which("helm") is None:
        pytest.skip("no helm in PATH")
    objects: list[Object] = []
    for release, namespace in RELEASES.items():
        folder = chart if release == "dagster" else chart / "charts" / release
        file = MANIFESTS / "helm" / f"{release}.yaml"
        options = ["--namespace", namespace, "--values", str(file), "--skip-schema-validation"]
        done = subprocess.run(
            ["helm", "template", release, str(folder), *options], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        for obj in filter(None, yaml.safe_load_all(done.stdout)):
            if "helm.sh/hook" not in (obj["metadata"].get("annotations") or {}):
                obj["metadata"].setdefault("namespace", namespace)
                objects.append(without_nulls(obj))
    return objects


def test_the_chart_makes_what_the_component_took_out(chart: Path, tmp_path: Path) -> None:
    objects = rendered(chart)
    assert {name_of(obj) for obj in objects if obj["kind"] != "ConfigMap"} == MADE | {f"Service {RUNS}/code"}
    assert {name_of(obj): problems(obj) for obj in objects if known(obj) and problems(obj)} == {}
    objects = [*without_dagster(tmp_path, "eks-spot-h200"), *objects]
    assert misnamed(objects) == dangling(objects) == idle_selectors(objects, from_outside()) == []
    assert {(v.rule, v.where) for v in lint_objects(objects) if v.rule != "image-placeholder"} == set()
    for _, _, labels, spec in pods(objects):
        assert not spec.get("initContainers") and len(spec["containers"]) == 1
        assert labels[COMPONENT] in ("webserver", "daemon", "code-location")
    webserver = named(objects, "Service", "dagster-webserver")["spec"]["ports"][0]
    assert webserver["port"] == 3000, "where the proxy looks for it"


def test_the_chart_s_instance_is_the_tree_s(chart: Path) -> None:
    from dagster._config import validate_config
    from dagster._core.instance.config import dagster_instance_config_schema, validate_concurrency_config

    instance = yaml.safe_load(named(rendered(chart), "ConfigMap", "dagster-instance")["data"]["dagster.yaml"])
    assert not (validate_config(dagster_instance_config_schema(), instance).errors or [])
    validate_concurrency_config(instance)
    database = INSTANCE["storage"]["postgres"]["postgres_db"]
    for name in ("run_storage", "event_log_storage", "schedule_storage"):
        given = instance.pop(name)["config"]["postgres_db"]
        assert {key: given[key] for key in ("port", "params", "scheme", "password")} == {
            key: database[key] for key in ("port", "params", "scheme", "password")
        }
    assert instance.pop("scheduler")["class"] == "DagsterDaemonScheduler"
    instance["retention"].pop("auto_materialize")  # the chart always has one; nothing here makes such ticks
    assert instance["run_coordinator"].pop("config") == {}
    assert instance == {name: section for name, section in INSTANCE.items() if name != "storage"}
