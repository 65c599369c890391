"""A Kubernetes API in memory, at the place of the client's HTTP connection: objects, selectors, patches, deletions.

It has no controllers: a test, `world.py` or a recorded sequence (`replay.py`) says what becomes of the objects.
"""

import itertools
import json as text
import threading
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from k8s.client import RESOURCES, ApiResource, KubernetesClient

Object = dict[str, Any]
Key = tuple[str, str, str]
"""Group, plural and name, in the one namespace that there is."""


VERSIONS = itertools.count(1)


def copied(obj: Any) -> Any:
    """As a client gets it: through JSON."""
    return text.loads(text.dumps(obj))


class Answer(NamedTuple):
    status_code: int
    body: Any
    headers: Mapping[str, str] = {}

    def json(self) -> Any:
        return self.body

    @property
    def text(self) -> str:
        return self.body if isinstance(self.body, str) else text.dumps(self.body)


class NoAnswer(Exception):
    """Nobody answered."""


class FakeApi:
    """`answers` to requests; `asked` are the verbs and paths of all of them."""

    base_url = "http://in-memory"

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.asked: list[tuple[str, str]] = []
        self.fault: Callable[[str, str], Answer | BaseException | None] = lambda verb, path: None
        """Asked before each request, for what goes wrong."""
        self.lost: Callable[[str, str], BaseException | None] = lambda verb, path: None
        """Asked after each request, for an answer that never comes."""
        self.lock = threading.RLock()

    def client(self) -> KubernetesClient:
        return KubernetesClient(self, NoAnswer, pauses_s=(0.0, 0.0))

    def request(self, method: str, path: str, params: Any = None, json: Any = None, headers: Any = None) -> Answer:
        self.asked.append((method, path))
        fault = self.fault(method, path)
        if isinstance(fault, BaseException):
            raise fault
        with self.lock:
            answer = fault or self._answer(method, path, params or {}, json, headers or {})
        if error := self.lost(method, path):
            raise error
        return answer

    def count(self, verb: str) -> int:
        return sum(method == verb for method, _ in self.asked)

    def put(self, key: Key, obj: Object) -> None:
        """The object as it is now; another spec is another generation."""
        with self.lock:
            version = next(VERSIONS)
            metadata, before = obj["metadata"], self.objects.get(key)
            metadata.setdefault("uid", f"uid-{version}")
            metadata["resourceVersion"] = str(version)
            metadata.setdefault("generation", 1)
            if before is not None and before.get("spec") != obj.get("spec"):
                metadata["generation"] = before["metadata"]["generation"] + 1
            self.objects[key] = obj

    def change(self, key: Key, **sections: Any) -> None:
        """Sections of an object, such as its status, in place of what it had."""
        with self.lock:
            self.put(key, copied(self.objects[key]) | sections)

    def applied(self, key: Key, obj: Object) -> Answer:
        there = self.objects.get(key)
        if there is not None:
            obj = {**there, **obj, "metadata": {**there["metadata"], **obj["metadata"]}}
        self.put(key, obj)
        return Answer(200, copied(obj))

    def delete(self, key: Key) -> None:
        """With all that it owns."""
        uid = self.objects.pop(key)["metadata"]["uid"]
        for other, obj in [*self.objects.items()]:
            if any(owner["uid"] == uid for owner in obj["metadata"].get("ownerReferences", ())):
                self.objects.pop(other, None)

    def log(self, pod: str) -> str:
        return ""

    def _answer(
        self, method: str, path: str, params: Mapping[str, str], json: Any, headers: Mapping[str, str]
    ) -> Answer:
        resource, name, subresource = parsed(path)
        key = (resource.group, resource.plural, name)
        if subresource == "log":
            return Answer(200, self.log(name))
        if not name:
            return Answer(200, {"items": self._listed(resource, params)})
        if method == "PATCH" and "apply" in headers["Content-Type"]:
            return self.applied(key, copied(json))
        if (there := self.objects.get(key)) is None:
            return refusal(404, f'{resource.plural} "{name}" not found', name)
        obj = copied(there)
        if method == "DELETE":
            wanted = json.get("preconditions", {})
            if any(obj["metadata"].get(field) != value for field, value in wanted.items()):
                return refusal(409, "the preconditions do not hold", name)
            self.delete(key)
        elif method == "PATCH":
            for operation in json:
                if not _patched(obj, operation):
                    return refusal(422, f"testing {operation['path']} failed", name)
            self.put(key, obj)
        return Answer(200, copied(obj))

    def _listed(self, resource: ApiResource, params: Mapping[str, str]) -> list[Object]:
        of_kind = [obj for key, obj in self.objects.items() if key[:2] == (resource.group, resource.plural)]
        labels, fields = _pairs(params.get("labelSelector", "")), _pairs(params.get("fieldSelector", ""))
        return [
            copied(obj)
            for obj in of_kind
            if labels.items() <= obj["metadata"].get("labels", {}).items() and fields.items() <= obj.items()
        ]


def key_of(kind: str, name: str) -> Key:
    """`kind`: as `k8s.client.RESOURCES` has it, or one of the operators' own that nobody asks for."""
    resource = RESOURCES.get(kind, ApiResource("", "", kind))
    return resource.group, resource.plural, name


def parsed(path: str) -> tuple[ApiResource, str, str]:
    """Resource, name and subresource of a request's path."""
    root, _, rest = path.strip("/").partition("/namespaces/")
    _, plural, name, subresource = [*map(unquote, rest.split("/")), "", ""][:4]
    _, *group, version = root.split("/")
    return ApiResource(group[0] if group else "", version, plural), name, subresource


def _pairs(selector: str) -> dict[str, str]:
    return dict(part.split("=", 1) for part in selector.split(",") if part)


def _patched(obj: Any, operation: Object) -> bool:
    """Of JSON patch what the project sends: test, add, replace, remove."""
    *steps, last = [step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]]
    for step in steps:
        obj = obj[int(step)] if isinstance(obj, list) else obj.setdefault(step, {})
    at: Any = int(last) if isinstance(obj, list) else last
    if operation["op"] == "test":
        return (obj.get(at) if isinstance(obj, dict) else obj[at]) == operation["value"]
    if operation["op"] == "remove":
        del obj[at]
    else:
        obj[at] = operation["value"]
    return True


def refusal(code: int, message: str, name: str = "") -> Answer:
    return Answer(code, {"kind": "Status", "code": code, "message": message, "details": {"name": name}})
