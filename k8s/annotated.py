"""The one object of the API by which a gateway routes. Its annotations say which rollout asked for its weights; a JSON
patch tests that nobody changed it since it was read."""

import random
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

from k8s.client import ApiResource, KubernetesClient, Refused
from k8s.slots import reached
from pipeline.rollout.router import Split

KEYS = tuple(f"preference-tuning/{word}" for word in ("rollout", "epoch", "champion", "canary"))
"""Annotations: who asked for these weights, and the digests of the two models (canary: "" for none)."""
TRIES = 60
"""Of a patch that others get ahead of: each of them got further by that."""
MAX_PAUSE_S = 0.05


class AskedWeights(NamedTuple):
    """As the annotations say. Epoch 0: nobody asked yet."""

    rollout: str
    epoch: int
    champion: str
    canary: str


def asked_by(split: Split) -> AskedWeights:
    return AskedWeights(split.rollout, split.epoch, split.champion.digest, split.canary.digest if split.canary else "")


class AnnotatedObject:
    """`base`: the manifests that it comes from."""

    def __init__(
        self, client: KubernetesClient, resource: ApiResource, kind: str, namespace: str, name: str, base: str
    ) -> None:
        self._client, self._resource, self._namespace, self._name, self._base = client, resource, namespace, name, base
        self.where = f"{kind} {namespace}/{name}"

    def read(self) -> tuple[dict[str, Any], AskedWeights]:
        """Raises ValueError where it is not there or lacks an annotation, OSError when nobody answers."""
        obj = reached(lambda: self._client.get(self._resource, self._namespace, self._name))
        if obj is None:
            raise ValueError(f"There is no {self.where}. Apply {self._base}, or set rollout.traffic.")
        annotations = obj["metadata"].get("annotations") or {}
        for key in KEYS:
            if key not in annotations:
                raise ValueError(f"{self.where} has no annotation {key}. Restore it from {self._base}.")
        rollout, epoch, champion, canary = (annotations[key] for key in KEYS)
        return obj, AskedWeights(rollout, int(epoch), champion, canary)

    def tries(self) -> Iterator[tuple[dict[str, Any], AskedWeights]]:
        """The object, read again after each patch that others got ahead of. Raises ConnectionError after TRIES."""
        for _ in range(TRIES):
            yield self.read()
            time.sleep(random.uniform(0, MAX_PAUSE_S))
        raise ConnectionError(
            f"{self.where} was changed by others in each of {TRIES} tries. Look who does: kubectl get -o yaml "
            "--show-managed-fields."
        )

    def patched(self, obj: dict[str, Any], operations: list[dict[str, Any]], asked: AskedWeights) -> bool:
        """False when the object was changed since it was read."""
        version = obj["metadata"]["resourceVersion"]
        patch = [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *operations]
        for key, value in zip(KEYS, asked, strict=True):
            path = f"/metadata/annotations/{key.replace('/', '~1')}"
            patch.append({"op": "replace", "path": path, "value": str(value)})
        try:
            reached(lambda: self._client.patch(self._resource, self._namespace, self._name, patch))
        except Refused as refusal:
            if refusal.code not in (409, 422) or self.read()[0]["metadata"]["resourceVersion"] == version:
                raise
            return False
        return True
