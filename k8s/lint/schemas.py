"""What an API server's admission by schema would say to an object: strict JSON Schema, CEL rules, names and labels.

Custom kinds are read from files of definitions, core kinds from kubernetes-validate (extra `lint`). Not here: what only
a controller's webhook refuses (that is the rules' part), rules on `oldSelf`, and defaults that the definitions leave
out: a rule that needs one of them is counted as not decided.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
from celpy.adapter import json_to_cel
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from k8s.lint.cel import FAILURES, program

CORE_GROUPS = ("k8s.io",)  # and those without a dot: apps, batch, policy, autoscaling
LABEL_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
LABEL_NAME = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
SUBDOMAIN = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*"
RBAC_KINDS = {"Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"}  # their names are path segments: any text

CLOSED = {
    "accessModes": {"ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"},
    "completionMode": {"Indexed", "NonIndexed"},
    "dnsPolicy": {"ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"},
    "imagePullPolicy": {"Always", "IfNotPresent", "Never"},
    "persistentVolumeReclaimPolicy": {"Delete", "Recycle", "Retain"},
    "podReplacementPolicy": {"Failed", "TerminatingOrFailed"},
    "policyTypes": {"Egress", "Ingress"},
    "restartPolicy": {"Always", "Never", "OnFailure"},
    "terminationMessagePolicy": {"FallbackToLogsOnError", "File"},
    "whenUnsatisfiable": {"DoNotSchedule", "ScheduleAnyway"},
}
"""Values of core fields, wherever they occur: the schemas have them as free text, the API server does not."""
DEFAULTS: dict[str, dict[tuple[str, ...], dict[str, Any]]] = {
    "HTTPRoute": {
        ("spec", "parentRefs"): {"group": "gateway.networking.k8s.io", "kind": "Gateway"},
        ("spec", "rules"): {"matches": [{"path": {"type": "PathPrefix", "value": "/"}}]},
        ("spec", "rules", "backendRefs"): {"group": "", "kind": "Service", "weight": 1},
    }
}
"""Of the objects in the lists at these paths: those without which a rule on what we write could not be decided."""


class Schemas:
    """Definitions of custom kinds, and those of Kubernetes itself."""

    def __init__(self, folder: Path) -> None:
        """`folder`: of GROUP_VERSION_KIND.json files, each the strict JSON Schema of one kind."""
        self.folder = folder
        self._unchecked: set[tuple[str, str]] = set()
        self._validators: dict[tuple[str, str], jsonschema.Draft202012Validator | None] = {}

    def known(self, obj: dict[str, Any]) -> bool:
        """Whether there is a schema for the object's apiVersion and kind."""
        return self._validator(obj) is not None

    def problems(self, obj: dict[str, Any]) -> list[str]:
        """What is wrong with it, `path: reason` each; empty: nothing. An unknown kind is a problem."""
        validator = self._validator(obj)
        if validator is None:
            return [f"no schema of apiVersion {obj.get('apiVersion', '')!r}, kind {obj.get('kind', '')!r}"]
        matches = [f"{error.json_path.removeprefix('$.')}: {error.message[:300]}" for error in _errors(validator, obj)]
        matches += [*_metadata(obj), *_outside(obj, "")]
        if matches:  # a rule is asked only of what has the right shape, as on an API server
            return matches
        return list(self._broken_rules(obj["kind"], validator.schema, with_defaults(obj), ""))

    def unchecked(self) -> list[tuple[str, str]]:
        """(kind, rule) of the CEL rules that were met and could not be decided here."""
        return sorted(self._unchecked)

    def _validator(self, obj: dict[str, Any]) -> jsonschema.Draft202012Validator | None:
        key = obj.get("apiVersion", ""), obj.get("kind", "")
        if not all(isinstance(part, str) for part in key):
            return None
        if key not in self._validators:
            self._validators[key] = self._read(*key)
        return self._validators[key]

    def _read(self, api_version: str, kind: str) -> jsonschema.Draft202012Validator | None:
        group, _, version = api_version.rpartition("/")
        if not re.fullmatch(r"[A-Za-z0-9.]*/?[a-z0-9]+", api_version.replace("-", "")) or not kind.isalnum():
            return None
        custom = self.folder / f"{group}_{version}_{kind}.json"
        if custom.is_file():
            return jsonschema.Draft202012Validator(json.loads(custom.read_text()))
        return _core(api_version, kind) if "." not in group or group.endswith(CORE_GROUPS) else None

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
            # The escape of a reserved word that is a field's name.
            self_ = json_to_cel(_with_escapes(value) if "__namespace__" in rule else value)
            return bool(program(rule).evaluate({"self": self_}))
        except FAILURES as error:
            if error.args[1:2] == (ValueError,):  # a value that the rule can't read: an API server refuses it too
                return False
            self._unchecked.add((kind, rule))
            return True


def with_defaults(obj: dict[str, Any]) -> dict[str, Any]:
    """As the API server has it when it asks the rules of its kind."""
    return _defaulted(obj, DEFAULTS.get(obj["kind"], {}))


def _core(api_version: str, kind: str) -> jsonschema.Draft202012Validator | None:
    stem = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    newest = kubernetes_validate.latest_version()
    try:
        schema = schema_contents(f"{_core_folder()}/{kind.lower()}-{stem}.json", newest)
    except FileNotFoundError:
        return None
    return jsonschema.Draft202012Validator(schema, registry=_core_registry())


def _core_folder() -> str:
    return f"kubernetes-json-schema/v{kubernetes_validate.latest_version()}-local-strict"


@functools.cache
def _core_registry() -> Registry[Any]:
    definitions = schema_contents(f"{_core_folder()}/_definitions.json", kubernetes_validate.latest_version())
    return Resource.from_contents(definitions) @ Registry()


@functools.cache
def _object_meta() -> jsonschema.Draft202012Validator:
    definitions = schema_contents(f"{_core_folder()}/_definitions.json", kubernetes_validate.latest_version())
    key = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta"
    reference = {"$ref": f"{definitions['$id']}#/$defs/{key}"}
    return jsonschema.Draft202012Validator(reference, registry=_core_registry())


def _errors(validator: jsonschema.Draft202012Validator, value: Any) -> Iterator[jsonschema.ValidationError]:
    return iter(sorted(validator.iter_errors(value), key=lambda error: error.json_path))


def _metadata(obj: dict[str, Any]) -> Iterator[str]:
    metadata = obj.get("metadata", {})
    yield from (f"metadata{error.json_path[1:]}: {error.message[:300]}" for error in _errors(_object_meta(), metadata))
    if not isinstance(metadata, dict):
        return
    name = metadata.get("name") or metadata.get("generateName")
    name = name.rstrip("-") if isinstance(name, str) and "name" not in metadata else name
    if not name or not isinstance(name, str):
        yield "metadata.name: required"
    elif obj["kind"] not in RBAC_KINDS and not re.fullmatch(SUBDOMAIN, name):
        yield f"metadata.name: {name[:80]!r} is no lowercase RFC 1123 subdomain"
    elif len(name) > (limit := 63 if obj["kind"] in ("Namespace", "Service") else 253):
        yield f"metadata.name: {len(name)} characters, at most {limit}"
    for field in ("labels", "annotations"):
        pairs = metadata.get(field)
        for key, value in pairs.items() if isinstance(pairs, dict) else ():
            prefix, _, rest = key.rpartition("/")
            if not re.fullmatch(LABEL_NAME, rest) or (prefix and not re.fullmatch(SUBDOMAIN, prefix)):
                yield f"metadata.{field}: key {key[:80]!r} is no qualified name"
            if field == "labels" and isinstance(value, str) and not re.fullmatch(LABEL_VALUE, value):
                yield f"metadata.labels.{key}: value {value[:80]!r} is no label value of at most 63 characters"


def _outside(value: Any, path: str) -> Iterator[str]:
    for key, item in value.items() if isinstance(value, dict) else ():
        for one in item if isinstance(item, list) else [item]:
            if key in CLOSED and isinstance(one, str) and one not in CLOSED[key]:
                yield f"{path}{key}: {one!r} is none of {', '.join(sorted(CLOSED[key]))}"
            yield from _outside(one, f"{path}{key}.")


def _defaulted(value: Any, defaults: dict[tuple[str, ...], dict[str, Any]], at: tuple[str, ...] = ()) -> Any:
    if not any(path[: len(at)] == at for path in defaults):
        return value
    if isinstance(value, list):
        return [_defaulted(item, defaults, at) for item in value]
    if isinstance(value, dict):
        filled = {**(defaults.get(at, {})), **value}
        return {key: _defaulted(item, defaults, (*at, key)) for key, item in filled.items()}
    return value


def _with_escapes(value: Any) -> Any:
    if isinstance(value, dict):
        escaped = {key: _with_escapes(item) for key, item in value.items()}
        return escaped | ({"__namespace__": escaped["namespace"]} if "namespace" in escaped else {})
    return [_with_escapes(item) for item in value] if isinstance(value, list) else value
