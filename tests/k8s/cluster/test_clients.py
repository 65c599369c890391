"""Real clients of Kubernetes against the tests' API server: what they can do here, they take it for an API server."""

from __future__ import annotations

import datetime
import ipaddress
import json
import shutil
import subprocess
from pathlib import Path

import pytest
from lightkube import ApiError, Client, KubeConfig
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.core_v1 import Container, PodSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import ConfigMap, Pod

from .bodies import config, job, jobset, pod
from .server import Server, api_server

KUBECTL = shutil.which("kubectl")


@pytest.fixture
def lightkube(server: Server, tmp_path: Path) -> Client:
    loaded = KubeConfig.from_file(str(server.kubeconfig(tmp_path / "kubeconfig", "lab")))
    return Client(config=loaded, field_manager="ours", trust_env=False)


def test_lightkube_writes_reads_and_deletes(lightkube: Client) -> None:
    result = lightkube.create(ConfigMap(metadata=ObjectMeta(name="notes", labels={"run": "a"}), data={"a": "1"}))
    assert result.metadata and result.metadata.uid
    assert lightkube.get(ConfigMap, "notes").data == {"a": "1"}
    assert [m.metadata.name for m in lightkube.list(ConfigMap, labels={"run": "a"}) if m.metadata] == ["notes"]
    result.data = {"a": "2"}
    assert lightkube.replace(result).data == {"a": "2"}
    assert lightkube.patch(ConfigMap, "notes", {"data": {"b": "3"}}).data == {"a": "2", "b": "3"}
    with pytest.raises(ApiError) as conflict:
        lightkube.apply(ConfigMap(metadata=ObjectMeta(name="notes"), data={"a": "9"}), field_manager="theirs")
    assert conflict.value.status.reason == "Conflict" and conflict.value.status.code == 409
    lightkube.delete(ConfigMap, "notes")
    with pytest.raises(ApiError, match="not found"):
        lightkube.get(ConfigMap, "notes")


def test_lightkube_applies_a_custom_resource(lightkube: Client) -> None:
    resource = create_namespaced_resource("jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets")
    first = lightkube.apply(resource(**jobset()))
    again = lightkube.apply(resource(**jobset()))
    assert first.metadata and again.metadata and first.metadata.resourceVersion == again.metadata.resourceVersion
    assert again.spec and again.spec["replicatedJobs"][0]["name"] == "trainer"


def test_lightkube_lists_in_pages_and_watches(lightkube: Client, server: Server) -> None:
    for number in range(5):
        lightkube.create(ConfigMap(metadata=ObjectMeta(name=f"m{number}")))
    assert len(list(lightkube.list(ConfigMap, chunk_size=2))) == 5
    assert server.count("list") == 3
    lines: list[tuple[str, str | None]] = []
    for event, obj in lightkube.watch(ConfigMap):
        lines.append((event, obj.metadata.name if obj.metadata else None))
        if len(lines) == 5:
            lightkube.delete(ConfigMap, "m2")
        if event == "DELETED":
            break
    assert [name for _, name in lines] == ["m0", "m1", "m2", "m3", "m4", "m2"]


def test_lightkube_reads_and_follows_a_log(lightkube: Client, server: Server, tmp_path: Path) -> None:
    lightkube.create(Pod(metadata=ObjectMeta(name="p"), spec=PodSpec(containers=[Container(name="c", image="i")])))
    with pytest.raises(ApiError, match="does not have a host assigned"):
        list(lightkube.log("p"))
    pod(server)
    file = tmp_path / "log"
    file.write_text("2026-01-01T00:00:00.5Z one\n2026-01-01T00:00:01.5Z two\n")
    server.logs = lambda namespace, name: file
    assert list(lightkube.log("rank-0", tail_lines=1)) == ["two\n"]
    server.storage.merge("Pod", "lab", "rank-0", {"status": {"phase": "Failed"}}, "status")
    assert list(lightkube.log("rank-0", follow=True)) == ["one\n", "two\n"]


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate for 127.0.0.1 and its key: kubectl sends no token without TLS."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    certified = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    pem, raw, plain = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(certified.public_bytes(pem))
    files[1].write_bytes(key.private_bytes(pem, raw, plain))
    return files


@pytest.mark.slow
@pytest.mark.skipif(not KUBECTL, reason="kubectl is not installed")
def test_kubectl_applies_gets_and_deletes(tmp_path: Path) -> None:
    with api_server(tls=certificate(tmp_path)) as server:
        server.storage.create("Namespace", "", {"metadata": {"name": "lab"}})
        kubeconfig = server.kubeconfig(tmp_path / "kubeconfig", "lab")

        def kubectl(*arguments: str, body: object = None, rc: int = 0) -> str:
            command = [KUBECTL or "", f"--kubeconfig={kubeconfig}", f"--cache-dir={tmp_path / 'cache'}", *arguments]
            text = json.dumps(body) if body else None
            done = subprocess.run(
                command, input=text, capture_output=True, text=True, timeout=300, env={"HOME": str(tmp_path)}
            )
            assert done.returncode == rc, done.stderr
            return done.stdout + done.stderr

        apply = ("apply", "--server-side", "--validate=false", "-f", "-")
        assert "serverside-applied" in kubectl(*apply, body=jobset())
        kubectl(*apply, body=job())
        assert kubectl("get", "jobsets", "-o", "name").strip() == "jobset.jobset.x-k8s.io/train"
        assert kubectl("get", "job", "train", "-o", "jsonpath={.spec.completions}") == "1"
        kubectl(*apply, body=config(a="1"))
        assert 'conflict with "kubectl": .data.a' in kubectl(*apply, "--field-manager=other", body=config(a="2"), rc=1)
        assert "deleted" in kubectl("delete", "jobset", "train")
        assert kubectl("get", "jobsets", "-A").strip() == "No resources found"
