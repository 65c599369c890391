"""A run's Job as dagster_k8s makes it of the platform's configuration.

`python -m tests.k8s.run_job` writes it anew as YAML; `python -m tests.k8s.run_job TAGS` prints the one of a run with
these tags, both in JSON. The extra `platform` may have an environment of its own, which DAGSTER_K8S_PYTHON names: this
file imports nothing of the project.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
CONFIGURATION = ROOT / "k8s" / "manifests" / "bases" / "platform" / "dagster.yaml"
Object = dict[str, Any]
GOLDEN = Path(__file__).with_name("run_job.yaml")
RUN = "7b0f4c1e-3f0d-4a52-8d0a-2a5d8f3a9c11"
KUBECONFIG = """
apiVersion: v1
kind: Config
current-context: x
clusters: [{name: x, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: x, user: {token: x}}]
contexts: [{name: x, context: {cluster: x, user: x}}]
"""


def kept() -> Object:
    """The one that is kept as a file."""
    return yaml.safe_load(GOLDEN.read_text())


def platform_python() -> str:
    """The Python that has dagster_k8s and dagster_aws; "" where there is none."""
    if all(importlib.util.find_spec(name) for name in ("dagster_k8s", "dagster_aws")):
        return sys.executable
    return os.environ.get("DAGSTER_K8S_PYTHON", "")


def made(python: str, tags: Mapping[str, str] | None = None) -> Object:
    """The Job, by that Python. Raises RuntimeError with what it says of tags that it does not allow."""
    command = [python, "-m", "tests.k8s.run_job", json.dumps(tags or {})]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout)


def launched(folder: Path, tags: Mapping[str, str] | None = None) -> Object:
    """By dagster_k8s itself (extra `platform`). Raises what it raises for tags that it does not allow."""
    import kubernetes.client
    from dagster import DagsterRun
    from dagster._config import process_config
    from dagster._core.code_pointer import ModuleCodePointer
    from dagster._core.origin import JobPythonOrigin, RepositoryPythonOrigin
    from dagster_k8s.job import construct_dagster_k8s_job
    from dagster_k8s.launcher import K8sRunLauncher

    section = yaml.safe_load(CONFIGURATION.read_text())["run_launcher"]["config"]
    config: Mapping[str, Any] = process_config(K8sRunLauncher.config_type(), section).value or {}
    kubeconfig = folder / "kubeconfig"
    kubeconfig.write_text(KUBECONFIG)
    launcher = K8sRunLauncher(**{**config, "load_incluster_config": False, "kubeconfig_file": str(kubeconfig)})
    image = f"preference-tuning/dagster@sha256:{'0' * 64}"
    pointer = ModuleCodePointer("jobs.definitions", "defs")
    origin = JobPythonOrigin(
        "preference_tuning", RepositoryPythonOrigin("/usr/bin/python", pointer, container_image=image)
    )
    run = DagsterRun("preference_tuning", run_id=RUN, job_code_origin=origin, tags=tags or {})
    context = launcher.get_container_context_for_run(run)
    job = construct_dagster_k8s_job(
        job_config=context.get_k8s_job_config(job_image=image, run_launcher=launcher),
        args=["dagster", "api", "execute_run", "{}"],
        job_name=f"dagster-run-{RUN}",
        pod_name=f"dagster-run-{RUN}",
        component="run_worker",
        user_defined_k8s_config=context.run_k8s_config,
        labels={"dagster/job": "preference_tuning", "dagster/run-id": RUN},
        env_vars=[{"name": "DAGSTER_RUN_JOB_NAME", "value": "preference_tuning"}],
    )
    job_object: Object = kubernetes.client.ApiClient().sanitize_for_serialization(job)
    for meta in (job_object["metadata"], job_object["spec"]["template"]["metadata"]):  # Dagster's own version
        meta["labels"].pop("app.kubernetes.io/version")
    return job_object


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        job = launched(Path(folder), json.loads(sys.argv[1]) if sys.argv[1:] else None)
    if sys.argv[1:]:
        print(json.dumps(job))
    else:
        GOLDEN.write_text(yaml.safe_dump(job, sort_keys=False, width=120))
