"""manifests/helm: what the values of Dagster's chart and the kustomize tree both say is the same in both."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml

from .manifests import MANIFESTS, PLATFORM, RUNS, Object, build, dangling, misnamed, name_of, named, objects_of, overlay

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


ROOT = Path(__file__).parents[2]
README = (ROOT / "k8s" / "README.md").read_text()
SECTION = README.partition("## With Dagster's Helm chart\n")[2].partition("\n## ")[0]
NAME = "app.kubernetes.io/name"

PLATFORM_VALUES, CODE_VALUES = values("dagster"), values("dagster-user-deployments")
WEBSERVER, DAEMON = PLATFORM_VALUES["dagsterWebserver"], PLATFORM_VALUES["dagsterDaemon"]
(CODE,) = CODE_VALUES["deployments"]
POSTGRES = PLATFORM_VALUES["postgresql"]
EACH = {"dagster-webserver": WEBSERVER, "dagster-daemon": DAEMON, "dagster-code": CODE}
every_pod = pytest.mark.parametrize("name", EACH)


def snake(node: Any) -> Any:
    """As the chart writes its own settings into dagster.yaml."""
    if not isinstance(node, dict):
        return node
    return {re.sub(r"([A-Z])", r"_\1", key).lower(): snake(value) for key, value in node.items()}


def enabled(section: Object) -> Object:
    assert section["enabled"] is True
    return {key: value for key, value in section.items() if key != "enabled"}


def custom(section: Object, kind: str) -> Object:
    """Of a part that the chart copies word for word."""
    assert section["type"] == f"C{kind[1:]}"
    return section["config"][kind]


def instance_of_values() -> Object:
    """dagster.yaml as the chart makes it, without its storage."""
    coordinator = custom(enabled(DAEMON["runCoordinator"]), "customRunCoordinator")
    assert coordinator.pop("config") == {}
    own = {
        "telemetry": PLATFORM_VALUES["telemetry"],
        "python_logs": PLATFORM_VALUES["pythonLogs"],
        "concurrency": enabled(PLATFORM_VALUES["concurrency"]),
        "retention": enabled(PLATFORM_VALUES["retention"]),
        "run_retries": DAEMON["runRetries"],
        "run_monitoring": DAEMON["runMonitoring"],
        "schedules": DAEMON["schedules"],
        "sensors": DAEMON["sensors"],
    }
    copied = {
        "run_launcher": custom(PLATFORM_VALUES["runLauncher"], "customRunLauncher"),
        "run_coordinator": coordinator,
        "compute_logs": custom(PLATFORM_VALUES["computeLogManager"], "customComputeLogManager"),
    }
    return snake(own) | copied | PLATFORM_VALUES["additionalInstanceConfig"]


def test_the_values_hold_every_section_of_the_instance() -> None:
    wanted = {name: section for name, section in INSTANCE.items() if name != "storage"}
    assert instance_of_values() == wanted


def container(name: str) -> tuple[Object, Object]:
    """A Deployment's pod in the tree, and its one container."""
    spec = named(build("platform"), "Deployment", name)["spec"]["template"]["spec"]
    return spec, spec["containers"][0]


@every_pod
def test_a_pod_is_confined_and_sized_as_in_the_tree(name: str) -> None:
    spec, own = container(name)
    given = EACH[name]
    assert f"{given['image']['repository']}:{given['image']['tag']}" == own["image"]
    wanted = [spec["securityContext"], own["securityContext"], own["resources"]]
    assert [given["podSecurityContext"], given["securityContext"], given["resources"]] == wanted
    writable = [volume for volume in spec["volumes"] if "configMap" not in volume]
    assert given["volumes"] == writable
    names = {volume["name"] for volume in writable}
    assert given["volumeMounts"] == [mount for mount in own["volumeMounts"] if mount["name"] in names]


@pytest.mark.slow
def test_the_component_takes_out_what_the_chart_makes(tmp_path: Path) -> None:
    name = "eks-spot-h200"
    objects = without_dagster(tmp_path, name)
    removed = {
        re.sub(r"-[a-z0-9]{10}$", "", n) for n in map(name_of, overlay(name)) if n not in set(map(name_of, objects))
    }
    assert removed == MADE | {
        f"Service {RUNS}/dagster-code", f"ConfigMap {PLATFORM}/dagster-instance",
        f"ConfigMap {PLATFORM}/dagster-environment", f"ServiceAccount {PLATFORM}/webserver",
        f"Role {RUNS}/run-canceler", f"RoleBinding {RUNS}/run-canceler",
    }  # fmt: skip
    assert misnamed(objects) == dangling(objects) == []
    assert named(objects, "ServiceAccount", "daemon")["automountServiceAccountToken"] is True
