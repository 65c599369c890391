"""Label and field selectors of the API, in their string form and in that of `spec.selector`."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from .kinds import Object, Refused
from .validation import QUALIFIED, SUBDOMAIN

Matches = Callable[[Object], bool]
SET = re.compile(r"^\s*(?P<key>[^\s=!,()]+)\s+(?P<op>in|notin)\s*\(\s*(?P<values>[^()]*)\)\s*$")
PLAIN = re.compile(r"^\s*(?P<key>[^\s=!,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s=!,()]*)\s*$")
ORDER = re.compile(r"^\s*(?P<key>[^\s=!,()<>]+)\s*(?P<op>[<>])\s*(?P<value>\d+)\s*$")
EXISTS = re.compile(r"^\s*(?P<no>!?)\s*(?P<key>[^\s=!,()]+)\s*$")


def by_labels(selector: str) -> Matches:
    """What a `labelSelector` lets through. Raises Refused 400 for one that cannot be read."""
    parts = re.split(r",(?![^(]*\))", selector) if selector.strip() else []
    tests = [_requirement(part) for part in parts]

    def matches(obj: Object) -> bool:
        labels = obj.get("metadata", {}).get("labels") or {}
        return all(test(labels) for test in tests)

    return matches


def _requirement(part: str) -> Callable[[Mapping[str, str]], bool]:
    if m := SET.match(part):
        key, values = _key(m["key"]), {_value(v.strip()) for v in m["values"].split(",")}
        if m["op"] == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    if m := PLAIN.match(part):
        key, value = _key(m["key"]), _value(m["value"])
        if m["op"] == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if m := ORDER.match(part):
        key, limit, sign = _key(m["key"]), int(m["value"]), 1 if m["op"] == ">" else -1
        return lambda labels: labels.get(key, "").isdecimal() and sign * int(labels[key]) > sign * limit
    if m := EXISTS.match(part):
        key, wanted = _key(m["key"]), not m["no"]
        return lambda labels: (key in labels) is wanted
    raise Refused(400, "BadRequest", f"unable to parse requirement: {part!r}")


def _key(key: str) -> str:
    prefix, slash, last = key.rpartition("/")
    if not QUALIFIED.fullmatch(last) or (slash and not SUBDOMAIN.fullmatch(prefix)):
        raise Refused(400, "BadRequest", f'unable to parse requirement: Invalid value: "{key}"')
    return key


def _value(value: str) -> str:
    if value and not QUALIFIED.fullmatch(value):
        raise Refused(400, "BadRequest", f'unable to parse requirement: Invalid value: "{value}"')
    return value


FIELDS = {
    "": {"metadata.name", "metadata.namespace"},
    "Pod": {"spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "status.phase"},
    "Event": {f"involvedObject.{f}" for f in ("kind", "name", "namespace", "uid")} | {"reason", "type"},
    "Job": {"status.successful"},
    "Node": {"spec.unschedulable"},
    "Namespace": {"status.phase"},
    "Secret": {"type"},
}
"""The fields that a list may be selected by: two of every resource, and these."""


def by_fields(selector: str, kind: str) -> Matches:
    """What a `fieldSelector` lets through. Raises Refused 400 for a field that the API server has no index of."""
    tests: list[tuple[list[str], str, bool]] = []
    for part in filter(str.strip, selector.split(",")):
        m = PLAIN.match(part)
        if not m or m["key"] not in FIELDS[""] | FIELDS.get(kind, set()):
            name = m["key"] if m else part
            raise Refused(400, "BadRequest", f'Unable to find "{kind}" that match field selector: "{name}"')
        tests.append((m["key"].split("."), m["value"], m["op"] != "!="))

    def matches(obj: Object) -> bool:
        return all((_at(obj, path) == value) is same for path, value, same in tests)

    return matches


def _at(obj: Object, path: list[str]) -> str:
    value: object = obj
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return "" if value is None else str(value)


def selected(selector: Object | None, labels: Mapping[str, str]) -> bool:
    """A `metav1.LabelSelector` (matchLabels, matchExpressions); nothing is selected by None, all by {}."""
    if selector is None:
        return False
    if any(labels.get(k) != v for k, v in (selector.get("matchLabels") or {}).items()):
        return False
    for e in selector.get("matchExpressions") or []:
        key, values = e["key"], e.get("values") or []
        held = {
            "In": labels.get(key) in values,
            "NotIn": labels.get(key) not in values,
            "Exists": key in labels,
            "DoesNotExist": key not in labels,
        }
        if not held[e["operator"]]:
            return False
    return True
