"""What a container of the tests' kubelet runs: its arguments, its environment, its names."""

from __future__ import annotations

import pytest

from .containers import Names, command, expanded, with_secrets
from .kinds import Object


@pytest.mark.parametrize(
    ("text", "value"),
    [("$(A)-$(B)", "1-$(B)"), ("$$(A)", "$(A)"), ("$A $", "$A $"), ("$(A", "$(A"), ("$$$(A)", "$1"), ("", "")],
)
def test_variables_are_expanded_as_kubernetes_does_it(text: str, value: str) -> None:
    assert expanded(text, {"A": "1"}) == value


def test_container_gets_arguments_and_environment_of_its_pod() -> None:
    fields = {
        "RANK": "metadata.annotations['i']",
        "RESTART": "metadata.labels['r']",
        "ME": "metadata.name",
        "ON": "spec.nodeName",
    }
    env = [{"name": k, "valueFrom": {"fieldRef": {"fieldPath": path}}} for k, path in fields.items()]
    env += [{"name": "ATTEMPT", "value": "1.$(RESTART)"}]
    container = {
        "name": "c",
        "command": ["python", "-m", "x"],
        "args": ["--node", "$(RANK)", "--attempt=$(ATTEMPT)"],
        "env": env,
    }
    metadata = {"name": "p", "namespace": "n", "uid": "u", "labels": {"r": "3"}, "annotations": {"i": "7"}}
    pod = {"metadata": metadata, "spec": {"nodeName": "far", "containers": [container]}}
    argv, environment = command(pod, Names(), {"EXTRA": "yes"})
    assert argv[0].endswith("python") or "python" in argv[0]
    assert argv[1:] == ["-m", "x", "--node", "7", "--attempt=1.3"]
    expected = {"RANK": "7", "RESTART": "3", "ME": "p", "ON": "far", "ATTEMPT": "1.3", "EXTRA": "yes", "HOSTNAME": "p"}
    assert expected.items() <= environment.items()
    assert environment.keys() - expected.keys() == {"PATH", "HOME"}


def test_container_gets_the_keys_of_its_secret() -> None:
    def pod(*references: Object) -> Object:
        env = [{"name": each["key"], "valueFrom": {"secretKeyRef": each}} for each in references]
        container = {"name": "c", "command": ["python"], "env": [*env, {"name": "ALSO", "value": "$(KEY)"}]}
        return {"metadata": {"name": "p", "namespace": "n", "uid": "u"}, "spec": {"containers": [container]}}

    secrets = {("n", "endpoints"): {"data": {"KEY": "YSQoQik="}}}

    def secret(namespace: str, name: str) -> Object | None:
        return secrets.get((namespace, name))

    absent = {"name": "endpoints", "key": "OTHER", "optional": True}
    opened = with_secrets(pod({"name": "endpoints", "key": "KEY"}, absent), secret)
    _, environment = command(opened, Names(), {})
    assert (environment["KEY"], environment["ALSO"]) == ("a$(B)", "a$(B)")
    assert "OTHER" not in environment
    with pytest.raises(ValueError, match=r"couldn't find key OTHER in Secret n/endpoints"):
        with_secrets(pod({**absent, "optional": False}), secret)


def test_port_of_a_name_changes_with_a_restart() -> None:
    def pod(restart: str, host: str = "j-0", owner: str = "o") -> Object:
        of = {"jobset.sigs.k8s.io/jobset-name": "s", "jobset.sigs.k8s.io/restart-attempt": restart}
        metadata = {"name": host, "namespace": "n", "uid": host, "labels": of, "ownerReferences": [{"uid": owner}]}
        return {"metadata": metadata, "spec": {"hostname": host, "subdomain": "s"}}

    names = Names()
    first = names.resolved(pod("0"), "--master=j-0.s:29500")
    assert first.startswith("--master=127.0.0.1:")
    assert names.resolved(pod("0", "j-1"), "--master=j-0.s.n.svc.cluster.local:29500").partition("=")[0] == "--master"
    assert names.resolved(pod("0", "j-1"), "--master=j-0.s:29500") == first
    assert names.resolved(pod("1"), "--master=j-0.s:29500") != first
    assert names.resolved(pod("0"), "other.t:29500 s3://j-0.s") == "other.t:29500 s3://j-0.s"
