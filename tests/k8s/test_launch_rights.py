"""A launch has the rights of its own backend's component: they are enough, and each that makes a gang is needed."""

from pathlib import Path

import pytest

from k8s.client import RESOURCES, KubernetesClient, connect
from k8s.observe import KINDS
from pipeline.core.storage import Store
from pipeline.training.launch import TrainingRefused
from pipeline.training.plan import TrainingPlan

from .conftest import GANG, Cluster, Launch, Robot, once_told
from .policies import launcher_account

Planned = tuple[Store, TrainingPlan]
BACKENDS = {"jobset": "jobset", "rayjob": "rayjob", "volcano": "volcano"}
"""Of a recipe, and its component's folder."""


def client_of(
    cluster: Cluster, folder: Path, *backends: str, without: tuple[str, str, str] | None = None
) -> KubernetesClient:
    account = launcher_account(cluster.namespace, *backends, without=without)
    client = connect(str(cluster.ours.kubeconfig(folder / "own", account=account)))
    client.pauses_s = (0.02, 0.05)
    return client


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_components_rights_are_enough_for_its_backend(
    cluster: Cluster, planned: Planned, tmp_path: Path, backend: str
) -> None:
    client = client_of(cluster, tmp_path, BACKENDS[backend])
    with Robot(cluster, planned, GANG[backend]):
        assert Launch(cluster, planned, cluster.settings(tmp_path, backend=backend), client).ended() is None


@pytest.mark.parametrize("verb", ["get", "create", "patch"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_right_that_was_taken_ends_the_launch(
    cluster: Cluster, planned: Planned, tmp_path: Path, backend: str, verb: str
) -> None:
    own = RESOURCES[KINDS[backend]]
    client = client_of(cluster, tmp_path, BACKENDS[backend], without=(own.group, own.plural, verb))
    launches, settings = list[Launch](), cluster.settings(tmp_path, backend=backend)
    launches.append(Launch(cluster, planned, settings, client, now=once_told(launches, "asking again")))
    error = launches[0].ended()
    assert isinstance(error, TrainingRefused)
    assert f'cannot {verb} resource "{own.plural}"' in str(error)


def test_another_backends_component_is_no_help(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    client = client_of(cluster, tmp_path, "rayjob", "volcano")
    launches, now = list[Launch](), once_told
    launches.append(Launch(cluster, planned, cluster.settings(tmp_path), client, now=now(launches, "asking again")))
    assert isinstance(launches[0].ended(), TrainingRefused)


def test_a_recipe_that_a_policy_refuses_is_told_why(cluster: Cluster, planned: Planned, tmp_path: Path) -> None:
    assert cluster.ours
    settings = cluster.settings(tmp_path, image="docker.io/library/python@sha256:" + "1" * 64)
    error = Launch(cluster, planned, settings).ended()
    assert isinstance(error, TrainingRefused)
    assert "gang-image" in str(error) and "what the policy allows (k8s/manifests/bases/admission)" in str(error)
