"""What the API server says of itself: its version, its groups and its resources, as far as kubectl asks."""

from __future__ import annotations

from .kinds import KINDS, Object

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0", "platform": "linux/amd64"}
HEALTH = ("/healthz", "/livez", "/readyz")
VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]


def discovered(path: str) -> Object | str | None:
    """The answer of a path that is no resource's; None for any other path."""
    parts = [part for part in path.split("/") if part]
    if path in HEALTH:
        return "ok"
    if parts == ["version"]:
        return VERSION
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if parts == ["apis"]:
        names = sorted({k.group for k in KINDS.values() if k.group})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(name) for name in names]}
    if len(parts) == 2 and parts[0] == "apis" and any(k.group == parts[1] for k in KINDS.values()):
        return {"kind": "APIGroup", "apiVersion": "v1"} | _group(parts[1])
    if parts[:1] in (["api"], ["apis"]) and len(parts) == (2 if parts[0] == "api" else 3):
        return _resources("/".join(parts[1:]))
    return None


def _group(name: str) -> Object:
    versions = sorted({k.version for k in KINDS.values() if k.group == name})
    listed = [{"groupVersion": f"{name}/{v}", "version": v} for v in versions]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(api_version: str) -> Object | None:
    kinds = [k for k in KINDS.values() if k.api_version == api_version]
    listed: list[Object] = []
    for kind in kinds:
        entry: Object = {"name": kind.plural, "singularName": kind.kind.lower(), "namespaced": kind.namespaced}
        listed += [entry | {"kind": kind.kind, "verbs": VERBS}]
        listed += [entry | {"name": f"{kind.plural}/status", "kind": kind.kind, "verbs": ["get", "patch", "update"]}]
    body = {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api_version, "resources": listed}
    return body if kinds else None
