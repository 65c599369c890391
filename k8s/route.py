"""The traffic split of a cluster: the weights of the two slots in an HTTPRoute of the Gateway API. Rules that do not
list both slots are others'. Every gateway has to say that it took the route."""

from collections.abc import Callable
from typing import Any, NamedTuple

from k8s.annotated import AnnotatedObject, AskedWeights, asked_by
from k8s.client import ApiResource, KubernetesClient
from k8s.slots import Slot, SlotPair
from pipeline.core.storage import ModelRef
from pipeline.recipe.rollout import HttpRouteTraffic
from pipeline.rollout.router import Identify, Readiness, Split, Unsettled

HTTP_ROUTE = ApiResource("gateway.networking.k8s.io", "v1", "httproutes")
FALL_BACK = "Fall Back"
"""How the message of PartiallyInvalid begins where a gateway still routes by an earlier generation."""


class _Route(NamedTuple):
    """As it was read. `weights`: by slot."""

    obj: dict[str, Any]
    asked: AskedWeights
    places: tuple[int, ...]
    """Of the rules that list both slots, which all get the same weights."""
    weights: dict[str, int]
    fault: str
    """Why the weights are not the shares of the requests, or ""."""
    unsettled: str
    """Why the newest generation is not in force at each gateway, or ""."""
    not_lowered: str
    """The same of a weight that is 0. In a route with rules of others it may be one of theirs that does not resolve."""


class HttpRoute:
    """TrafficSplit over the rules of an HTTPRoute that list both slots. Its gateway draws an arm for each request."""

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
        self._identify, self._location = identify, location
        self.slots = SlotPair(client, section.namespace, section.slots, model_name)
        self._object = AnnotatedObject(
            client, HTTP_ROUTE, "HTTPRoute", section.namespace, section.route, "k8s/manifests/bases/serving"
        )

    def read(self) -> Split | Unsettled | None:
        """What the gateways route by; None when no rollout ever asked for anything.

        Raises ValueError for a route or slots that are not as this project ships them, OSError when nobody answers.
        """
        route, slots = self._route(*self._object.read()), self.slots.read()
        asked = route.asked
        self.slots.check(slots)
        if route.fault:
            raise ValueError(route.fault)
        if not asked.epoch:
            return None
        models = {slot.digest: ModelRef(uri=slot.uri, digest=slot.digest) for slot in slots if slot.digest}
        weights = {slot.digest: route.weights[slot.name] for slot in slots if slot.digest}
        named = (asked.champion, asked.canary)
        stray = {slot.name: route.weights[slot.name] for slot in slots if slot.digest not in named}
        if any(stray.values()):
            raise ValueError(
                f"{self._object.where} sends requests to {_shown(stray)}, which holds neither the champion "
                f"{asked.champion[:12]} nor the canary {asked.canary[:12] or '(none)'}. Set its weight to 0."
            )
        if asked.champion not in models:
            raise ValueError(f"No slot holds the champion {asked.champion[:12]}: {_held(slots)}. Load it into one.")
        canary_weight = weights.get(asked.canary, 0) if asked.canary else 0
        if weights[asked.champion] + canary_weight != 100:
            raise ValueError(
                f"The weights of {self._object.where} are {_shown(route.weights)}: they do not sum to 100, and are "
                "shares of their sum. Set two percentages."
            )
        split = Split(
            rollout=asked.rollout,
            epoch=asked.epoch,
            champion=models[asked.champion],
            champion_weight=weights[asked.champion],
            canary=models.get(asked.canary, ModelRef(uri="", digest=asked.canary)) if asked.canary else None,
            canary_weight=canary_weight,
            warm=next((models[s.digest] for s in slots if s.wanted and s.digest and s.digest not in named), None),
        )
        reason = route.unsettled if canary_weight else route.not_lowered
        return Unsettled(reason=reason, asked=split) if reason else split

    def apply(self, split: Split) -> None:
        """Ask for these weights, then have the slots hold and run what the split names. No effect when the route
        carries a later epoch, or the same one and a lower weight, which a person set.

        A model without requests is loaded into the free slot, with as many servers as the champion has. Servers of a
        model that the split does not name end once no gateway sends them anything. Call it again until `ready` and
        `read` agree. Raises ValueError for a model with requests that no slot holds and for a route that is not as
        shipped, OSError when nobody answers.
        """
        for obj, asked in self._object.tries():
            route, slots = self._route(obj, asked), self.slots.read()
            if asked.epoch > split.epoch:
                return
            if split.canary_weight:  # the way back needs the champion's slot alone
                self.slots.check(slots)
                if route.fault:
                    raise ValueError(route.fault)
            if split.champion.digest not in {slot.digest for slot in slots}:  # the first of a deployment
                self._fill(split, route, slots)
                slots = self.slots.read()
            weights = _weights(split, slots, route.weights)
            if (asked, route.weights) == (asked_by(split), weights) and not route.fault:
                self._fill(split, route, slots)
                return
            canaries = [slot.name for slot in slots if split.canary and slot.digest == split.canary.digest]
            if asked.epoch == split.epoch and any(route.weights[name] < weights[name] for name in canaries):
                return  # a person took requests from the canary
            if self._object.patched(obj, _operations(route, weights), asked_by(split)):
                self._fill(split, self._route(*self._object.read()), slots)
                return

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
        idle = {s.name for s in slots if s.digest not in named and not route.weights[s.name] and not route.not_lowered}
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

    def _route(self, obj: dict[str, Any], asked: AskedWeights) -> _Route:
        """Raises ValueError for a route in which no rule lists both slots."""
        where, slots = self._object.where, sorted(self.slots.names)
        rules: list[list[dict[str, Any]]] = [rule.get("backendRefs") or [] for rule in obj["spec"].get("rules") or []]
        names = [[str(row.get("name")) for row in rows] for rows in rules]
        own = {
            i: {str(row["name"]): int(row.get("weight", 1)) for row in rules[i]}
            for i, each in enumerate(names)
            if sorted(name for name in each if name in slots) == slots
        }
        if not own:
            raise ValueError(
                f"No rule of {where} lists both {' and '.join(slots)}, each once: its rules have the backends {names}. "
                "Restore the one of k8s/manifests/bases/serving."
            )
        weights, fault = next(iter(own.values())), ""
        others = {name: weight for name, weight in weights.items() if weight and name not in slots}
        if any(each != weights for each in own.values()):
            fault = f"Rules {[*own]} of {where} list both slots with weights that differ. Set the same ones in each."
        elif others:
            fault = f"{where} also sends requests for the slots to {_shown(others)}. Set that weight to 0."
        unsettled = _unsettled(obj, ("Accepted", "ResolvedRefs"))
        not_lowered = _unsettled(obj, ("Accepted",)) if len(own) < len(rules) else unsettled
        return _Route(obj, asked, tuple(own), {name: weights[name] for name in slots}, fault, unsettled, not_lowered)


def _operations(route: _Route, weights: dict[str, int]) -> list[dict[str, Any]]:
    """What sets these weights in each rule that lists both slots."""
    operations: list[dict[str, Any]] = []
    for i in route.places:
        for j, row in enumerate(route.obj["spec"]["rules"][i]["backendRefs"]):
            if row["name"] in weights:
                path = f"/spec/rules/{i}/backendRefs/{j}/weight"
                operations.append({"op": "add", "path": path, "value": weights[row["name"]]})  # it may be left out
    return operations


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


def _unsettled(obj: dict[str, Any], kinds: tuple[str, ...]) -> str:
    """Why the newest generation of a route is not in force at each of its gateways by these conditions, or ""."""
    generation, namespace = obj["metadata"]["generation"], obj["metadata"]["namespace"]
    parents: list[dict[str, Any]] = (obj.get("status") or {}).get("parents") or []
    for reference in obj["spec"].get("parentRefs") or []:
        gateway = _gateway(reference, namespace)
        statuses = [row for row in parents if _gateway(row["parentRef"], namespace) == gateway]
        if not statuses:
            return f"gateway {gateway[0]}/{gateway[1]} has not said anything about the route"
        for row in statuses:
            conditions = {condition["type"]: condition for condition in row.get("conditions") or []}
            for kind in kinds:
                condition = conditions.get(kind)
                if condition is None:
                    return f"gateway {gateway[0]}/{gateway[1]} does not say {kind}"
                if condition.get("observedGeneration") != generation:
                    of = condition.get("observedGeneration")
                    return f"gateway {gateway[0]}/{gateway[1]} is at generation {of} of the route, not {generation}"
                if condition["status"] != "True":
                    why = f"{condition.get('reason', '')} {condition.get('message', '')}".strip()
                    return f"gateway {gateway[0]}/{gateway[1]} says {kind} {condition['status']}: {why}"
            message = conditions.get("PartiallyInvalid", {}).get("message", "")
            if message.startswith(FALL_BACK):
                return f"gateway {gateway[0]}/{gateway[1]} routes by an earlier generation of the route: {message}"
    return "" if obj["spec"].get("parentRefs") else "the route names no gateway"


def _gateway(reference: dict[str, Any], namespace: str) -> tuple[str, str, str, int]:
    """Namespace, name, section and port of a parent reference."""
    named = reference.get("namespace") or namespace, reference["name"]
    return *named, reference.get("sectionName", ""), int(reference.get("port", 0))


def _held(slots: tuple[Slot, Slot]) -> str:
    return ", ".join(f"{slot.name} holds {slot.digest[:12] or 'nothing'}" for slot in slots)


def _shown(weights: dict[str, int]) -> str:
    return ", ".join(f"{name} {weight}" for name, weight in weights.items())
