"""The traffic split of a cluster: the two weights of one HTTPRoute of the Gateway API. A JSON patch that tests what was
read replaces weights and annotations; every gateway has to say that it took the route."""

import random
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from k8s.client import ApiResource, KubernetesClient, Refused
from k8s.slots import Slot, SlotPair, reached
from pipeline.core.storage import ModelRef
from pipeline.recipe.rollout import HttpRouteTraffic
from pipeline.rollout.router import Identify, Readiness, Split, Unsettled

HTTP_ROUTE = ApiResource("gateway.networking.k8s.io", "v1", "httproutes")
ROLLOUT, EPOCH, CHAMPION, CANARY = (f"preference-tuning/{word}" for word in ("rollout", "epoch", "champion", "canary"))
"""Annotations of the route: who asked for these weights, and the digests of the two models (canary: "" for none)."""
CONDITIONS = ("Accepted", "ResolvedRefs")
TRIES = 60
"""Of a patch that others get ahead of: each of them got further by that."""
MAX_PAUSE_S = 0.05


class _Route(NamedTuple):
    """As it was read. `weights`: by slot, in the order of its backends."""

    version: str
    rollout: str
    epoch: int
    champion: str
    canary: str
    weights: dict[str, int]
    unsettled: str


class HttpRoute:
    """TrafficSplit over one HTTPRoute, whose gateway draws an arm for each request."""

    def __init__(
        self,
        client: KubernetesClient,
        section: HttpRouteTraffic,
        model_name: str,
        identify: Identify,
        location: Callable[[ModelRef], str],
    ) -> None:
        """`model_name`: what callers ask for. `identify`: tells what a slot serves. `location`: where the slots load a
        model from (its export); raises ValueError where it is not there yet."""
        self._client, self._section, self._identify, self._location = client, section, identify, location
        self.slots = SlotPair(client, section.namespace, section.slots, model_name)

    def read(self) -> Split | Unsettled | None:
        """What the gateways route by; None when no rollout ever asked for anything.

        Raises ValueError for a route or slots that are not as this project ships them, OSError when nobody answers.
        """
        route, slots = self._route(), self.slots.read()
        self.slots.check(slots)
        if not route.epoch:
            return None
        models = {slot.digest: ModelRef(uri=slot.uri, digest=slot.digest) for slot in slots if slot.digest}
        weights = {slot.digest: route.weights[slot.name] for slot in slots if slot.digest}
        named = (route.champion, route.canary)
        stray = {slot.name: route.weights[slot.name] for slot in slots if slot.digest not in named}
        if any(stray.values()):
            raise ValueError(
                f"{self._where} sends requests to {_shown(stray)}, which holds neither the champion "
                f"{route.champion[:12]} nor the canary {route.canary[:12] or '(none)'}. Set its weight to 0."
            )
        if route.champion not in models:
            raise ValueError(f"No slot holds the champion {route.champion[:12]}: {_held(slots)}. Load it into one.")
        canary_weight = weights.get(route.canary, 0) if route.canary else 0
        if weights[route.champion] + canary_weight != 100:
            raise ValueError(
                f"The weights of {self._where} are {_shown(route.weights)}: they do not sum to 100, and are shares of "
                "their sum. Set two percentages."
            )
        asked = Split(
            rollout=route.rollout,
            epoch=route.epoch,
            champion=models[route.champion],
            champion_weight=weights[route.champion],
            canary=models.get(route.canary, ModelRef(uri="", digest=route.canary)) if route.canary else None,
            canary_weight=canary_weight,
            warm=next((models[s.digest] for s in slots if s.wanted and s.digest and s.digest not in named), None),
        )
        return Unsettled(reason=route.unsettled, asked=asked) if route.unsettled else asked

    def apply(self, split: Split) -> None:
        """Ask for these weights, then have the slots hold and run what the split names. No effect when the route
        carries a later epoch, or the same one and a lower weight, which a person set.

        A model without requests is loaded into the free slot, with as many servers as the champion has. Servers of a
        model that the split does not name end once no gateway sends them anything. Call it again until `ready` and
        `read` agree. Raises ValueError for a model with requests that no slot holds and for a route that is not as
        shipped, OSError when nobody answers.
        """
        for _ in range(TRIES):
            route, slots = self._route(), self.slots.read()
            if route.epoch > split.epoch:
                return
            if split.canary_weight:  # the way back needs the champion's slot alone
                self.slots.check(slots)
            if split.champion.digest not in {slot.digest for slot in slots}:  # the first of a deployment
                self._fill(split, route, slots)
                slots = self.slots.read()
            weights = _weights(split, slots, route.weights)
            wanted = (split.rollout, split.epoch, split.champion.digest, split.canary.digest if split.canary else "")
            if (route.rollout, route.epoch, route.champion, route.canary, route.weights) == (*wanted, weights):
                self._fill(split, route, slots)
                return
            canaries = [slot.name for slot in slots if split.canary and slot.digest == split.canary.digest]
            if route.epoch == split.epoch and any(route.weights[name] < weights[name] for name in canaries):
                return  # a person took requests from the canary
            if self._patched(route, weights, wanted):
                self._fill(split, self._route(), slots)
                return
            time.sleep(random.uniform(0, MAX_PAUSE_S))
        raise ConnectionError(
            f"{self._where} was changed by others in each of {TRIES} tries. Look who does: kubectl get -o yaml "
            "--show-managed-fields."
        )

    def ready(self, model: ModelRef) -> Readiness:
        """What the slot of a model serves, and on how many pods; the reason where that is not the model."""
        slots = self.slots.read()
        slot = next((slot for slot in slots if slot.digest == model.digest), None)
        if slot is None:
            return Readiness(served_digest="", replicas=0, reason=f"no slot holds {model.digest[:12]}: {_held(slots)}")
        return self.slots.readiness(slot, self._identify)

    def _fill(self, split: Split, route: _Route, both: tuple[Slot, Slot]) -> None:
        """Have the slots hold and run the models of a split; one step of it where that takes several."""
        slots = [slot for slot in both if not slot.missing]
        of = {slot.digest: slot for slot in slots if slot.digest}
        servers = max(1, of[split.champion.digest].wanted if split.champion.digest in of else 1)
        named = {model.digest for model in (split.champion, split.canary, split.warm) if model is not None}
        # Of those that the split does not name, the ones whose weight the gateways have taken away.
        idle = {s.name for s in slots if s.digest not in named and not route.weights[s.name] and not route.unsettled}
        for model in filter(None, (split.champion, split.canary)):
            if (slot := of.get(model.digest)) is None:
                free = sorted(
                    (each for each in slots if not each.digest or each.name in idle), key=lambda s: bool(s.digest)
                )
                if free and not self.slots.load(free[0], ModelRef(uri=self._location(model), digest=model.digest)):
                    self.slots.scale(free[0].name, servers)
            elif not slot.wanted:
                self.slots.scale(slot.name, servers)
        for slot in slots:
            if slot.digest and slot.wanted and slot.name in idle:
                self.slots.scale(slot.name, 0)

    @property
    def _where(self) -> str:
        return f"HTTPRoute {self._section.namespace}/{self._section.route}"

    def _route(self) -> _Route:
        name, namespace = self._section.route, self._section.namespace
        obj = reached(lambda: self._client.get(HTTP_ROUTE, namespace, name))
        if obj is None:
            raise ValueError(f"There is no {self._where}. Apply k8s/manifests/bases/serving, or set rollout.traffic.")
        annotations = obj["metadata"].get("annotations") or {}
        for key in (ROLLOUT, EPOCH, CHAMPION, CANARY):
            if key not in annotations:
                raise ValueError(f"{self._where} has no annotation {key}. Restore it from k8s/manifests/bases/serving.")
        return _Route(
            version=obj["metadata"]["resourceVersion"],
            rollout=annotations[ROLLOUT],
            epoch=int(annotations[EPOCH]),
            champion=annotations[CHAMPION],
            canary=annotations[CANARY],
            weights=self._backends(obj),
            unsettled=_unsettled(obj),
        )

    def _backends(self, obj: dict[str, Any]) -> dict[str, int]:
        """The weight of each slot. Raises ValueError for a route of anything else than one rule with both slots."""
        rules = obj["spec"].get("rules") or []
        rows: list[dict[str, Any]] = [row for rule in rules for row in rule.get("backendRefs") or []]
        names = [str(row["name"]) for row in rows]
        if len(rules) != 1 or sorted(names) != sorted(self.slots.names):
            raise ValueError(
                f"{self._where} has {len(rules)} rules with the backends {names}. Leave one rule that lists "
                f"{' and '.join(self.slots.names)}, each once, or name other slots in rollout.traffic."
            )
        return {name: int(row.get("weight", 1)) for name, row in zip(names, rows, strict=True)}

    def _patched(self, route: _Route, weights: dict[str, int], wanted: tuple[str, int, str, str]) -> bool:
        """False when the route was changed since it was read."""
        operations: list[dict[str, Any]] = [{"op": "test", "path": "/metadata/resourceVersion", "value": route.version}]
        for place, name in enumerate(route.weights):
            backend = f"/spec/rules/0/backendRefs/{place}"
            operations += [
                {"op": "test", "path": f"{backend}/name", "value": name},
                {"op": "add", "path": f"{backend}/weight", "value": weights[name]},  # it may have been left out
            ]
        for key, value in zip((ROLLOUT, EPOCH, CHAMPION, CANARY), wanted, strict=True):
            path = f"/metadata/annotations/{key.replace('/', '~1')}"
            operations.append({"op": "replace", "path": path, "value": str(value)})
        name, namespace = self._section.route, self._section.namespace
        try:
            reached(lambda: self._client.patch(HTTP_ROUTE, namespace, name, operations))
        except Refused as refusal:
            if refusal.code not in (409, 422) or self._route().version == route.version:
                raise
            return False
        return True


def _weights(split: Split, slots: tuple[Slot, Slot], now: dict[str, int]) -> dict[str, int]:
    """Of each slot. Of two that hold one model, the one with the larger weight now goes on serving it. Raises
    ValueError for a model with traffic that no slot holds."""
    weights = {slot.name: 0 for slot in slots}
    of = {slot.digest: slot.name for slot in sorted(slots, key=lambda each: now[each.name]) if slot.digest}
    for model, weight in ((split.champion, split.champion_weight), (split.canary, split.canary_weight)):
        if model is None or not weight:
            continue
        if model.digest not in of:
            raise ValueError(f"{weight}% is for {model.digest[:12]}, and no slot holds it: {_held(slots)}. Load it.")
        weights[of[model.digest]] += weight
    return weights


def _unsettled(obj: dict[str, Any]) -> str:
    """Why the newest generation of a route is not in force at each of its gateways, or ""."""
    generation, namespace = obj["metadata"]["generation"], obj["metadata"]["namespace"]
    parents: list[dict[str, Any]] = (obj.get("status") or {}).get("parents") or []
    for reference in obj["spec"].get("parentRefs") or []:
        gateway = _gateway(reference, namespace)
        statuses = [row for row in parents if _gateway(row["parentRef"], namespace) == gateway]
        if not statuses:
            return f"gateway {gateway[0]}/{gateway[1]} has not said anything about the route"
        for row in statuses:
            conditions = {condition["type"]: condition for condition in row.get("conditions") or []}
            for kind in CONDITIONS:
                condition = conditions.get(kind)
                if condition is None:
                    return f"gateway {gateway[0]}/{gateway[1]} does not say {kind}"
                if condition.get("observedGeneration") != generation:
                    of = condition.get("observedGeneration")
                    return f"gateway {gateway[0]}/{gateway[1]} is at generation {of} of the route, not {generation}"
                if condition["status"] != "True":
                    why = f"{condition.get('reason', '')} {condition.get('message', '')}".strip()
                    return f"gateway {gateway[0]}/{gateway[1]} says {kind} {condition['status']}: {why}"
    return "" if obj["spec"].get("parentRefs") else "the route names no gateway"


def _gateway(reference: dict[str, Any], namespace: str) -> tuple[str, str, str, int]:
    """Namespace, name, section and port of a parent reference."""
    named = reference.get("namespace") or namespace, reference["name"]
    return *named, reference.get("sectionName", ""), int(reference.get("port", 0))


def _held(slots: tuple[Slot, Slot]) -> str:
    return ", ".join(f"{slot.name} holds {slot.digest[:12] or 'nothing'}" for slot in slots)


def _shown(weights: dict[str, int]) -> str:
    return ", ".join(f"{name} {weight}" for name, weight in weights.items())
