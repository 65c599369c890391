"""The subresource `scale` of Deployments: the number of replicas, and no other part of the object."""

from __future__ import annotations

from typing import Any

from .kinds import Object, Refused
from .patches import patch_of
from .storage import Storage

SCALED = frozenset({"Deployment"})


def scale_of(deployment: Object) -> Object:
    """What a read of the subresource answers."""
    meta, status = deployment["metadata"], deployment.get("status") or {}
    kept = {key: meta[key] for key in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": kept,
        "spec": {"replicas": deployment["spec"].get("replicas", 1)},
        "status": {"replicas": status.get("replicas", 0)},
    }


def rescaled(storage: Storage, namespace: str, name: str, content_type: str, patch: Any, manager: str) -> Object:
    """The Scale after a patch of it. Raises Refused 422 for a number that is none."""
    with storage.changed:
        old = storage.get("Deployment", namespace, name)
        new = patch_of("Deployment", content_type, scale_of(old), patch)
        replicas = new["spec"].get("replicas")
        if not isinstance(replicas, int) or replicas < 0:
            raise Refused(422, "Invalid", f'Scale.autoscaling "{name}" is invalid: spec.replicas: {replicas!r}')
        old["spec"]["replicas"] = replicas
        return scale_of(storage.update("Deployment", namespace, old, "", manager))
