"""Schemas of kinds: Kubernetes' own by kubernetes-validate, custom ones from a folder, with the CEL rules of their
definitions by cel-python (extra `lint`). Not here: rules on `oldSelf`, and what only a server knows (`--server`)."""

import functools
import json
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celpy
import jsonschema
import kubernetes_validate
from celpy import celtypes
from celpy.adapter import json_to_cel
from celpy.celparser import CELParseError
from celpy.evaluation import CELEvalError
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

FAILURES = (CELEvalError, CELParseError, NotImplementedError, ValueError)
"""Of an expression: that it cannot be compiled, or not be evaluated for a value."""
Validator = jsonschema.Draft202012Validator
_compiling = threading.Lock()  # celpy's parser is one for the process


class Schemas:
    """Definitions of custom kinds (GROUP_VERSION_KIND.json, the strict JSON Schema of each), and Kubernetes' own."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.unchecked: set[tuple[str, str]] = set()
        """Kind and text of the CEL rules that were met and could not be decided here."""
        self._validators: dict[tuple[str, str], Validator | None] = {}

    def known(self, obj: dict[str, Any]) -> bool:
        """Whether there is a schema for the object's apiVersion and kind."""
        return self._validator(obj) is not None

    def problems(self, obj: dict[str, Any]) -> list[str]:
        """What is wrong with it, `path: reason` each; empty: nothing. An unknown kind is a problem."""
        validator = self._validator(obj)
        if validator is None:
            return [f"no schema of apiVersion {obj.get('apiVersion', '')!r}, kind {obj.get('kind', '')!r}"]
        errors = [(error.json_path[2:] or "(root)", error) for error in validator.iter_errors(obj)]
        metadata = _definition("io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta").iter_errors(obj.get("metadata", {}))
        errors += [(f"metadata{error.json_path[1:]}", error) for error in metadata]
        found = sorted({f"{path}: {error.message[:300]}" for path, error in errors})
        # A rule is asked only of what has the right shape, as on an API server.
        return found or list(self._broken_rules(obj["kind"], validator.schema, obj, ""))

    def _validator(self, obj: dict[str, Any]) -> Validator | None:
        key = str(obj.get("apiVersion", "")), str(obj.get("kind", ""))
        if key not in self._validators:
            self._validators[key] = self._read(*key)
        return self._validators[key]

    def _read(self, api_version: str, kind: str) -> Validator | None:
        group, _, version = api_version.rpartition("/")
        if not re.fullmatch(r"[A-Za-z0-9.-]*/?[a-z0-9]+", api_version) or not kind.isalnum():
            return None
        if self.folder is not None and (file := self.folder / f"{group}_{version}_{kind}.json").is_file():
            return Validator(json.loads(file.read_bytes()))
        if "." in group and not group.endswith(".k8s.io"):
            return None
        try:
            stem = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
            return Validator(_core(f"{kind.lower()}-{stem}"), registry=_registry())
        except FileNotFoundError:
            return None

    def _broken_rules(self, kind: str, schema: Any, value: Any, path: str) -> Iterator[str]:
        if not isinstance(schema, dict):
            return
        for rule in schema.get("x-kubernetes-validations", ()):
            if "oldSelf" not in rule["rule"] and not self._holds(kind, rule["rule"], value):
                yield f"{path.lstrip('.') or '(root)'}: {rule.get('message', rule['rule'])}"
        if isinstance(value, dict):
            named, other = schema.get("properties", {}), schema.get("additionalProperties")
            for key, item in value.items():
                yield from self._broken_rules(kind, named.get(key, other), item, f"{path}.{key}")
        elif isinstance(value, list):
            for place, item in enumerate(value):
                yield from self._broken_rules(kind, schema.get("items"), item, f"{path}[{place}]")

    def _holds(self, kind: str, rule: str, value: Any) -> bool:
        try:
            return bool(program(rule).evaluate({"self": json_to_cel(value)}))
        except FAILURES as error:
            if error.args[1:2] == (ValueError,):  # a value that the rule can't read: an API server refuses it too
                return False
            self.unchecked.add((kind, rule))
            return True


@functools.cache
def program(rule: str) -> celpy.Runner:
    """A compiled CEL expression, with the functions of Kubernetes' library that our rules use. Raises CELParseError."""
    functions: dict[str, Any] = {
        "find": lambda text, pattern: celtypes.StringType((re.search(str(pattern), str(text)) or [""])[0]),
        "split": lambda text, by: celtypes.ListType([celtypes.StringType(part) for part in str(text).split(str(by))]),
    }
    with _compiling:
        environment = celpy.Environment()
        return environment.program(environment.compile(rule), functions=functions)


def _core(stem: str) -> Any:
    newest = kubernetes_validate.latest_version()
    return schema_contents(f"kubernetes-json-schema/v{newest}-local-strict/{stem}.json", newest)


@functools.cache
def _registry() -> Registry[Any]:
    return Resource.from_contents(_core("_definitions")) @ Registry()


@functools.cache
def _definition(name: str) -> Validator:
    return Validator({"$ref": f"{_core('_definitions')['$id']}#/$defs/{name}"}, registry=_registry())
