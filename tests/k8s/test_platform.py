"""The base `platform` (and, for its pods, `serving`): what a container may do, what is secret, how Dagster is set."""

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import yaml

from pipeline.recipe import load

from . import run_job
from .manifests import MANIFESTS, RUNS, Object, both, build, named, objects_of, of_kind, overlay
from .manifests import bare_pods as pods
from .manifests import pods as owned_pods

ROOT = Path(__file__).parents[2]
OVERLAYS = sorted(path.parent for path in (MANIFESTS / "overlays").glob("*/kustomization.yaml"))


ENFORCE = "pod-security.kubernetes.io/enforce"
VOLUMES = {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"}
"""That `restricted` allows."""


def violations(spec: Object) -> Iterator[str]:
    """Of the profile's controls, version 1.33; an empty spec has some."""
    own = spec.get("securityContext", {})
    if any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC")):
        yield "host namespaces"
    if any(not (volume.keys() - {"name"} <= VOLUMES) for volume in spec.get("volumes", ())):
        yield "volume types"
    if own.get("sysctls"):
        yield "sysctls"
    for container in [*spec.get("initContainers", ()), *spec["containers"]]:
        merged = {**own, **container.get("securityContext", {})}
        capabilities = merged.get("capabilities", {})
        if merged.get("privileged") or merged.get("allowPrivilegeEscalation") is not False:
            yield "privilege"
        if "ALL" not in capabilities.get("drop", ()) or set(capabilities.get("add", ())) - {"NET_BIND_SERVICE"}:
            yield "capabilities"
        if merged.get("runAsNonRoot") is not True or merged.get("runAsUser") == 0:
            yield "root"
        if merged.get("seccompProfile", {}).get("type") not in ("RuntimeDefault", "Localhost"):
            yield "seccomp"
        if any("hostPort" in port for port in container.get("ports", ())):
            yield "host ports"


def weaknesses(spec: Object) -> list[str]:
    """What keeps a pod out of a namespace with Pod Security `restricted`, or unwatched, unlimited or unpinned."""
    matches = list(violations(spec))
    if "serviceAccountName" not in spec or "automountServiceAccountToken" not in spec:
        matches.append("account by default")
    for container in spec.get("initContainers", []) + spec["containers"]:
        name, resources = container["name"], container.get("resources", {})
        if not container.get("securityContext", {}).get("readOnlyRootFilesystem"):
            matches.append(f"{name}: writable root")
        if not {"cpu", "memory"} <= resources.get("requests", {}).keys() or "memory" not in resources.get("limits", {}):
            matches.append(f"{name}: resources")
        if not re.fullmatch(r"[^\s@]+@sha256:[0-9a-f]{64}", container["image"]):
            matches.append(f"{name}: image")
        if container in spec["containers"] and "livenessProbe" not in container:
            matches.append(f"{name}: liveness")
        if container in spec["containers"] and container.get("ports") and "readinessProbe" not in container:
            matches.append(f"{name}: readiness")
    return matches


@pytest.mark.parametrize("name", ["eks-spot-h200", "eks-a100", "gke"])
def test_no_pod_may_more_than_it_needs_or_its_namespace_allows(name: str) -> None:
    enforced = {o["metadata"]["name"]: o["metadata"]["labels"][ENFORCE] for o in of_kind(overlay(name), "Namespace")}
    assert enforced == {
        "preference-tuning": "restricted",
        "preference-tuning-platform": "restricted",
        "preference-tuning-serving": "baseline",  # what KServe adds is not ours
    }
    assert {pod.owner: found for pod in owned_pods(overlay(name)) if (found := weaknesses(pod.spec))} == {}
    assert list(violations(run_job.kept()["spec"]["template"]["spec"])) == []


def test_no_secret_is_written_down() -> None:
    assert not of_kind(both(), "Secret")
    secret = re.compile(r"(?i)password|secret|token|_key|database_url|backend_store_uri")
    literals = [
        v["name"]
        for _, _, _, spec in pods(both())
        for c in spec["containers"]
        for v in c.get("env", [])
        if "value" in v
    ]
    literals += [key for obj in of_kind(both(), "ConfigMap") for key in obj["data"]]
    assert literals and not [name for name in literals if secret.search(name)]
    instance = yaml.safe_load((MANIFESTS / "bases" / "platform" / "dagster.yaml").read_text())
    database = instance["storage"]["postgres"]["postgres_db"]
    assert all("env" in database[key] for key in ("hostname", "username", "password", "db_name"))


def code_location(objects: Sequence[Object]) -> Object:
    return named(objects, "Deployment", "dagster-code")["spec"]["template"]["spec"]["containers"][0]


def instance() -> Object:
    (config,) = (obj for obj in of_kind(build("platform"), "ConfigMap") if "dagster.yaml" in obj["data"])
    return yaml.safe_load(config["data"]["dagster.yaml"])


def test_the_instance_is_one_that_dagster_takes() -> None:
    from dagster._config import validate_config
    from dagster._core.instance.config import dagster_instance_config_schema, validate_concurrency_config

    config = instance()
    assert not (validate_config(dagster_instance_config_schema(), config).errors or [])
    validate_concurrency_config(config)
    assert validate_config(dagster_instance_config_schema(), config | {"run_monitorng": {}}).errors


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda path: path.name)
def test_the_instance_finds_what_it_reads_from_the_environment(folder: Path) -> None:
    objects = objects_of(folder)
    (config,) = (obj["data"] for obj in of_kind(objects, "ConfigMap") if "dagster.yaml" in obj["data"])
    read = set(re.findall(r"env: (\w+)", config["dagster.yaml"]))
    secret = {name for name in read if name.startswith("DAGSTER_PG_")}
    for prefix in ("dagster-environment", "run-environment"):
        (values,) = (o for o in of_kind(objects, "ConfigMap") if o["metadata"]["name"].startswith(prefix))
        assert read - secret <= values.get("data", {}).keys(), prefix


def test_what_a_run_needs_is_in_its_own_namespace() -> None:
    launcher = instance()["run_launcher"]["config"]
    maps = {
        obj["metadata"]["name"]
        for obj in of_kind(build("platform"), "ConfigMap")
        if obj["metadata"]["namespace"] == RUNS
    }
    assert launcher["job_namespace"] == RUNS
    assert set(launcher["env_config_maps"]) <= maps
    code = code_location(build("platform"))
    assert {"configMapRef": {"name": "run-environment"}} in code["envFrom"]  # by this very name, not one with a hash
    mounted = [*launcher["volume_mounts"], *launcher["run_k8s_config"]["container_config"]["volume_mounts"]]
    assert {m["name"] for m in mounted} == {m["name"] for m in code["volumeMounts"]} == {"data", "tmp"}


@pytest.mark.parametrize("folder", OVERLAYS, ids=lambda path: path.name)
def test_the_data_root_has_one_path_in_steps_and_in_trainers(folder: Path) -> None:
    objects = objects_of(folder)
    values = named(objects, "ConfigMap", "run-environment")["data"]
    path = ROOT / Path(values["PREFERENCE_TUNING_RECIPE"]).relative_to("/app")
    trainers = load(path, values["PREFERENCE_TUNING_OVERRIDES"].split()).compute.kubernetes
    (steps,) = (m["mount_path"] for m in instance()["run_launcher"]["config"]["volume_mounts"])
    sensors = {m["name"]: m["mountPath"] for m in code_location(objects)["volumeMounts"]}
    assert trainers is not None
    assert trainers.mount == steps == sensors["data"]
