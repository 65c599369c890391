"""The client against an API server that refuses, errs, hangs and is away."""

from pathlib import Path

import pytest
import yaml

from k8s.client import RESOURCES, Refused, Unreachable, connect
from tests.servers import HttpAsked, answering

from .fake_api import Answer, FakeApi, NoAnswer, refusal

PODS, JOBSETS = RESOURCES["Pod"], RESOURCES["JobSet"]
JOBSET = {
    "apiVersion": "jobset.x-k8s.io/v1alpha2",
    "kind": "JobSet",
    "metadata": {"name": "x", "namespace": "gang", "labels": {"a": "b"}},
    "spec": {},
}


def test_what_is_applied_is_there_once() -> None:
    client = FakeApi().client()
    assert client.get(JOBSETS, "gang", "x") is None
    first = client.apply(JOBSET)
    assert client.apply(JOBSET)["metadata"]["uid"] == first["metadata"]["uid"]
    assert [each["metadata"]["name"] for each in client.list(JOBSETS, "gang", "a=b")] == ["x"]
    assert client.list(JOBSETS, "gang", "a=c") == []
    assert not client.delete(JOBSETS, "gang", "x", uid="another"), "only the one that was meant"
    assert client.delete(JOBSETS, "gang", "x")
    assert not client.delete(JOBSETS, "gang", "x")


REFUSALS = {
    "a field that does not exist": (500, "failed to create typed patch object: .spec.x", 400, "operator's version"),
    "a kind that is not installed": (404, "404 page not found", 404, "Install what serves it"),
    "a namespace that is not there": (404, 'namespaces "gang" not found', 404, "create the namespace"),
    "another's field": (409, "conflict with kubectl", 409, "Somebody else manages it"),
    "no login": (401, "Unauthorized", 401, "Log in"),
    "no right": (403, "cannot patch resource", 403, "Give the service account that right"),
    "a full quota": (403, "exceeded quota: x", 403, "Raise that ResourceQuota"),
    "a namespace that ends": (403, "x is being terminated", 403, "Make the namespace again once it is gone"),
    "a policy": (422, "ValidatingAdmissionPolicy 'x' denied request", 422, "what the policy allows"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_a_refusal_is_told_with_what_helps_and_asked_once(name: str) -> None:
    status, message, code, advice = REFUSALS[name]
    api = FakeApi()
    api.fault = lambda verb, path: refusal(status, message)
    with pytest.raises(Refused, match=advice) as refused:
        api.client().apply(JOBSET)
    assert message in str(refused.value) and refused.value.code == code
    assert len(api.asked) == 1


@pytest.mark.parametrize(
    "trouble", [NoAnswer(), refusal(500, "etcd"), refusal(503, "x"), Answer(410, {"message": "old"})]
)
def test_a_bad_moment_of_the_server_is_waited_out(trouble: Answer | Exception) -> None:
    api = FakeApi()
    api.fault = lambda verb, path: trouble if len(api.asked) < 3 else None
    assert api.client().list(PODS, "gang") == []
    assert len(api.asked) == 3


def test_a_server_that_stays_away_is_said_with_its_address() -> None:
    api = FakeApi()
    api.fault = lambda verb, path: NoAnswer()
    client = api.client()
    with pytest.raises(Unreachable, match=r"(?s)http://in-memory.*in 3 tries.*Check that it is up"):
        client.list(PODS, "gang")
    assert len(api.asked) == 3 and not client.answered
    api.asked.clear()
    with pytest.raises(Unreachable):
        client.log("gang", "pod", "trainer")
    assert len(api.asked) == 1, "a log is asked for once"


def kubeconfig(folder: Path, url: str) -> str:
    given = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "x",
        "clusters": [{"name": "x", "cluster": {"server": url}}],
        "users": [{"name": "x", "user": {"token": "secret"}}],
        "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
    }
    (folder / "kubeconfig").write_text(yaml.safe_dump(given))
    return str(folder / "kubeconfig")


def test_a_kubeconfig_leads_to_its_server(tmp_path: Path) -> None:
    asked: list[HttpAsked] = []
    with answering(lambda each: (asked.append(each), (200, b'{"items": []}'))[1]) as url:
        assert connect(kubeconfig(tmp_path, url)).list(PODS, "gang", "a=b") == []
    assert [each.path for each in asked] == ["/api/v1/namespaces/gang/pods?labelSelector=a%3Db"]
    assert asked[0].headers["Authorization"] == "Bearer secret"


@pytest.mark.parametrize("content", ["", "{", "a: [", "clusters: 3", None])
def test_a_kubeconfig_that_is_none_is_said(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "kubeconfig").write_text(content)
    with pytest.raises(ValueError, match="no usable kubeconfig"):
        connect(str(tmp_path / "kubeconfig"))
