"""The client against an API server that refuses, errs, hangs and is away."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from k8s.client import RESOURCES, ApiResource, KubernetesClient, Refused, Unreachable, connect, resource_of

from .cluster.faults import Fault
from .cluster.server import Server, api_server

SERVICE = ApiResource("", "v1", "services")
SPACE = "gang"


@pytest.fixture(autouse=True)
def services(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that needs no controller."""
    monkeypatch.setitem(RESOURCES, "Service", SERVICE)


@pytest.fixture
def server() -> Iterator[Server]:
    with api_server() as server:
        server.storage.create("Namespace", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
        yield server


@pytest.fixture
def client(server: Server, tmp_path: Path) -> KubernetesClient:
    result = connect(str(server.kubeconfig(tmp_path / "kubeconfig")))
    result.pauses_s = (0.01, 0.01, 0.01)
    return result


def service(name: str = "x", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": SPACE, "labels": {"a": "b"}},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}], **spec},
    }


def test_what_is_applied_is_there_once(client: KubernetesClient) -> None:
    assert client.get(SERVICE, SPACE, "x") is None
    first = client.apply(service())
    assert client.apply(service())["metadata"]["uid"] == first["metadata"]["uid"]
    assert [result["metadata"]["name"] for result in client.list(SERVICE, SPACE, "a=b")] == ["x"]
    assert client.list(SERVICE, SPACE, "a=c") == []
    client.delete(SERVICE, SPACE, "never there")
    client.delete(SERVICE, SPACE, "x")
    client.delete(SERVICE, SPACE, "x")
    left = client.get(SERVICE, SPACE, "x")
    assert left is not None  # in the foreground: the garbage collector ends it, after what it owns
    assert left["metadata"]["finalizers"] == ["foregroundDeletion"]


def test_only_the_object_that_was_meant_is_deleted(client: KubernetesClient) -> None:
    client.apply(service())
    client.delete(SERVICE, SPACE, "x", uid="another")
    assert client.get(SERVICE, SPACE, "x") is not None


@pytest.mark.shared
def test_a_field_that_does_not_exist_is_refused(client: KubernetesClient, shared_data: Path) -> None:
    with pytest.raises(Refused, match=r"(?s)spec\.clusterIPP: field not declared.*check the operator") as refusal:
        client.apply(service(clusterIPP="None"))
    assert refusal.value.code == 400


@pytest.mark.shared
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"ports": "many"}, "wrong type"),
        ({"ports": [{"port": 80}, {"port": 80}]}, "duplicate entries for key"),
    ],
)
def test_what_an_apply_answers_with_500_is_not_asked_for_twice(
    client: KubernetesClient, server: Server, shared_data: Path, spec: dict[str, Any], said: str
) -> None:
    with pytest.raises(Refused, match=said) as refusal:
        client.apply(service(**spec))
    assert refusal.value.code == 400 and server.count("patch") == 1


def test_missing_kind_is_told_from_a_missing_object(client: KubernetesClient) -> None:
    absent = ApiResource("jobset.x-k8s.io", "v9", "jobsets")
    for ask in (lambda: client.get(absent, SPACE, "x"), lambda: client.list(absent, SPACE, "")):
        with pytest.raises(Refused, match=r"404 page not found Install what serves it") as refusal:
            ask()
        assert refusal.value.code == 404
    client.delete(absent, SPACE, "x")  # then there is nothing to delete either


def test_a_name_stays_one_part_of_the_path(client: KubernetesClient, server: Server) -> None:
    for name in ("a\nb", "../x", "a/status", "a?watch=1"):
        assert client.get(SERVICE, SPACE, name) is None
        assert server.requests[-1].call.name == name


def test_a_namespace_that_is_not_there_is_said(client: KubernetesClient) -> None:
    obj = service()
    obj["metadata"]["namespace"] = "nowhere"
    with pytest.raises(Refused, match=r'(?s)"nowhere" not found.*create the namespace'):
        client.apply(obj)


def test_what_another_manager_owns_is_not_taken(client: KubernetesClient, server: Server) -> None:
    server.storage.apply("Service", SPACE, "x", service(ports=[{"port": 80, "name": "theirs"}]), "theirs")
    with pytest.raises(Refused, match=r"(?s)conflict.*Somebody else manages it") as refusal:
        client.apply(service(ports=[{"port": 80, "name": "ours"}]))
    assert refusal.value.code == 409


@pytest.mark.parametrize(("status", "advice"), [(401, "Log in"), (403, "Give the service account that right")])
def test_a_right_that_is_missing_is_not_asked_for_twice(
    client: KubernetesClient, server: Server, status: int, advice: str
) -> None:
    server.faults.add(Fault(verb="patch", kind="Service", status=status, times=0))
    with pytest.raises(Refused, match=advice):
        client.apply(service())
    assert server.count("patch") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault",
    [Fault(status=500, times=2), Fault(status=503, times=2), Fault(drop="before"), Fault(drop="after", times=3)],
    ids=["500", "503", "never arrived", "answer lost"],
)
def test_a_bad_moment_of_the_server_is_waited_out(client: KubernetesClient, server: Server, fault: Fault) -> None:
    server.faults.add(Fault(**{**vars(fault), "verb": "patch"}))
    client.apply(service())
    assert len(server.storage.list("Service")[0]) == 1


def test_a_server_that_asks_for_time_gets_it(
    client: KubernetesClient, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr("k8s.client.time.sleep", pauses.append)
    server.faults.add(Fault(verb="patch", status=429, times=1))
    client.apply(service())
    assert pauses == [1.0]


def test_a_server_that_hangs_is_given_up_in_time(server: Server, tmp_path: Path) -> None:
    client = connect(str(server.kubeconfig(tmp_path / "kubeconfig")), timeout_s=0.2)
    client.pauses_s = (0.01,)
    server.faults.add(Fault(hang_s=60, times=0))
    with pytest.raises(Unreachable, match="in 2 tries"):
        client.get(SERVICE, SPACE, "x")


def test_a_server_that_is_away_is_said_with_its_address(client: KubernetesClient, server: Server) -> None:
    with server.away(), pytest.raises(Unreachable, match=r"(?s)127\.0\.0\.1.*in 4 tries.*Check that it is up"):
        client.list(SERVICE, SPACE, "")
    assert client.list(SERVICE, SPACE, "") == []
    assert client.requests == 5


@pytest.mark.parametrize("content", ["", "{", "a: [", "clusters: 3"])
def test_a_kubeconfig_that_is_none_is_said(tmp_path: Path, content: str) -> None:
    (tmp_path / "kubeconfig").write_text(content)
    with pytest.raises(ValueError, match="no usable kubeconfig"):
        connect(str(tmp_path / "kubeconfig"))
    with pytest.raises(ValueError, match="no usable kubeconfig"):
        connect(str(tmp_path / "missing"))


def test_a_kind_that_no_renderer_makes_is_said() -> None:
    with pytest.raises(ValueError, match="knows no Secret"):
        resource_of({"kind": "Secret", "apiVersion": "v1"})
    assert resource_of({"kind": "Job", "apiVersion": "batch.volcano.sh/v1alpha1"}).group == "batch.volcano.sh"
    assert resource_of({"kind": "Job", "apiVersion": "batch/v1"}).group == "batch"
