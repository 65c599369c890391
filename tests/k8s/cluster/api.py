"""The smallest client of a Kubernetes API: what the tests' kubelet and driver need, on our server as on a real one."""

from __future__ import annotations

import base64
import json
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import httpx2
import yaml

from .kinds import KINDS, Object, kind_of

STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
TIMEOUT_S = 30.0


class Api:
    """One API server. Methods raise httpx2.HTTPStatusError for an answer of 400 or more, unless they say otherwise."""

    def __init__(self, url: str, token: str = "", tls: ssl.SSLContext | bool = True) -> None:
        headers = {"User-Agent": "tests"} | ({"Authorization": f"Bearer {token}"} if token else {})
        verify = tls if url.startswith("https") else False  # no certificates to load
        self._client = httpx2.Client(base_url=url, headers=headers, verify=verify, timeout=TIMEOUT_S, trust_env=False)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Self:
        """The current context's cluster, with its token or its client certificate."""
        config = yaml.safe_load(path.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"]).get("user") or {}
        if not cluster["server"].startswith("https"):
            return cls(cluster["server"], user.get("token", ""))
        tls = ssl.create_default_context()
        if authority := _bytes(cluster, "certificate-authority"):
            tls.load_verify_locations(cadata=authority.decode())
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        if certificate := _bytes(user, "client-certificate"):
            with tempfile.NamedTemporaryFile(suffix=".pem") as file:
                file.write(certificate + b"\n" + (_bytes(user, "client-key") or b""))
                file.flush()
                tls.load_cert_chain(file.name)
        return cls(cluster["server"], user.get("token", ""), tls)

    def find(self, kind: str, namespace: str, name: str) -> Object | None:
        """The object, or None."""
        answer = self._client.get(_path(kind, namespace, name))
        return None if answer.status_code == 404 else _read(answer)

    def list(self, kind: str, namespace: str = "", labels: str = "") -> tuple[list[Object], str]:
        """The objects and the resourceVersion of the list."""
        body = _read(self._client.get(_path(kind, namespace), params={"labelSelector": labels} if labels else {}))
        of = KINDS[kind]
        items = [{"apiVersion": of.api_version, "kind": of.kind} | item for item in body["items"]]
        return items, body["metadata"]["resourceVersion"]

    def watch(self, kind: str, since: str, labels: str = "", seconds: int = 1) -> Iterator[tuple[str, Object]]:
        """(type, object) for so long; of all namespaces."""
        params = {"watch": "true", "resourceVersion": since, "timeoutSeconds": str(seconds)}
        params |= {"labelSelector": labels} if labels else {}
        with self._client.stream("GET", _path(kind, ""), params=params) as answer:
            if answer.is_error:
                answer.read()
            answer.raise_for_status()
            for line in answer.iter_lines():
                event = json.loads(line)
                yield event["type"], event["object"]

    def create(self, obj: Object) -> Object:
        path = _path(kind_of(obj), obj["metadata"].get("namespace", ""))
        return _read(self._client.post(path, json=obj))

    def patch(
        self, kind: str, namespace: str, name: str, patch: Object, subresource: str = "", content: str = MERGE
    ) -> Object | None:
        """The new object, or None where there is none of that name."""
        path, headers = _path(kind, namespace, name, subresource), {"Content-Type": content}
        answer = self._client.patch(path, content=json.dumps(patch), headers=headers)
        return None if answer.status_code == 404 else _read(answer)

    def delete(
        self, kind: str, namespace: str, name: str, grace_s: int | None = None, uid: str = "", **options: str
    ) -> None:
        """Nothing happens where it is gone, or somebody else has its name (another `uid`)."""
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1"} | options
        body |= {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        body |= {"preconditions": {"uid": uid}} if uid else {}
        answer = self._client.request("DELETE", _path(kind, namespace, name), json=body)
        if answer.status_code not in (404, 409):
            _read(answer)

    def evict(self, namespace: str, name: str) -> int:
        """The code of the answer: 201, 404 for a pod that is gone, 429 where a disruption budget forbids it."""
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"namespace": namespace, "name": name}}
        return self._client.post(_path("Pod", namespace, name, "eviction"), json=body).status_code

    def bind(self, namespace: str, name: str, node: str) -> None:
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": name, "namespace": namespace},
            "target": target,
        }
        _read(self._client.post(_path("Pod", namespace, name, "binding"), json=body))

    def close(self) -> None:
        self._client.close()


def _path(kind: str, namespace: str = "", name: str = "", subresource: str = "") -> str:
    of = KINDS[kind]
    parts = ["", "apis" if of.group else "api", of.api_version]
    parts += ["namespaces", namespace] if namespace and of.namespaced else []
    return "/".join([*parts, of.plural, *([name] if name else []), *([subresource] if subresource else [])])


def _read(answer: httpx2.Response) -> Any:
    if answer.is_error:
        raise httpx2.HTTPStatusError(
            f"{answer.request.method} {answer.url}: {answer.text}", request=answer.request, response=answer
        )
    return answer.json()


def _named(rows: list[Object], name: str) -> Object:
    return next(row for row in rows if row["name"] == name)


def _bytes(of: Object, key: str) -> bytes | None:
    """Of a kubeconfig's file or its inline data."""
    if data := of.get(f"{key}-data"):
        return base64.b64decode(data)
    return Path(of[key]).read_bytes() if of.get(key) else None
