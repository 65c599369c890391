"""The scheduler: binds pods to nodes one by one, so that half a gang does start; Volcano's pods all or none.

Sees resources, node selectors, required node affinity, taints, cordons, required pod anti-affinity by host name.
Without any Node object every pod lands on "node-0", which has room for all.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from decimal import Decimal

from .kinds import Object
from .objects import deleting, ended, event, labels, notes, place, quantity, requests, set_status, with_condition
from .storage import Storage

GROUP = "scheduling.k8s.io/group-name"
PODS = Decimal(110)
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def reconcile(storage: Storage) -> None:
    pods = storage.list("Pod")[0]
    nodes = storage.list("Node")[0]
    waiting = [p for p in pods if not p["spec"].get("nodeName") and not deleting(p) and not ended(p)]
    waiting = [p for p in waiting if not p["spec"].get("schedulingGates")]
    placed = [p for p in pods if p["spec"].get("nodeName") and not ended(p)]
    for gang in _gangs(waiting):
        bindings: list[tuple[Object, str]] = []
        for pod in gang:
            node, message = _choose(pod, nodes, placed)
            if node:
                bindings.append((pod, node))
                placed.append(pod | {"spec": pod["spec"] | {"nodeName": node}})
            else:
                _unschedulable(storage, pod, message)
        if len(bindings) < _minimum(storage, gang, placed):
            placed = [p for p in placed if not any(place(p) == place(b) for b, _ in bindings)]
            for pod, _ in bindings:
                waits = f"pod group is not ready, {len(gang)} Pending, {_minimum(storage, gang, placed)} minAvailable"
                _unschedulable(
                    storage, pod, f"{len(gang) - len(bindings)}/{len(gang)} tasks in gang unschedulable: {waits}"
                )
            continue
        for pod, node in bindings:
            _bind(storage, pod, node)


def tolerates(tolerations: Sequence[Object], taint: Object) -> bool:
    for t in tolerations:
        effect, key = t.get("effect") or taint["effect"], t.get("key") or taint["key"]
        if effect != taint["effect"] or key != taint["key"]:
            continue
        if t.get("operator", "Equal") == "Exists" or (t.get("key") and t.get("value", "") == taint.get("value", "")):
            return True
    return False


def matches(term: Object, of: dict[str, str]) -> bool:
    """A node selector term (or a label selector) against labels."""
    if any(of.get(k) != v for k, v in (term.get("matchLabels") or {}).items()):
        return False
    for wants in term.get("matchExpressions") or []:
        has, inside = wants["key"] in of, of.get(wants["key"]) in (wants.get("values") or [])
        holds = {"In": inside, "NotIn": not inside, "Exists": has, "DoesNotExist": not has}
        if not holds[wants["operator"]]:
            return False
    return True


def _gangs(waiting: list[Object]) -> list[list[Object]]:
    groups: dict[tuple[str, str], list[Object]] = {}
    for pod in waiting:
        groups.setdefault((place(pod)[0], notes(pod).get(GROUP) or f"/{place(pod)[1]}"), []).append(pod)
    return list(groups.values())


def _minimum(storage: Storage, gang: list[Object], placed: list[Object]) -> int:
    namespace, name = place(gang[0])[0], notes(gang[0]).get(GROUP)
    if not name:
        return 0
    groups = [g for g in storage.list("PodGroup", namespace)[0] if place(g)[1] == name]
    wanted = groups[0]["spec"].get("minMember", 1) if groups else 1
    here = {place(p) for p in gang}
    return wanted - sum(notes(p).get(GROUP) == name and place(p) not in here for p in placed)


def _choose(pod: Object, nodes: list[Object], placed: list[Object]) -> tuple[str, str]:
    """The node, or "" and why there is none, as the real scheduler says it."""
    if not nodes:
        return "node-0", ""
    reasons: Counter[str] = Counter()
    for node in nodes:
        result = _against(pod, node, [p for p in placed if p["spec"]["nodeName"] == place(node)[1]])
        if not result:
            return place(node)[1], ""
        reasons.update(result)
    value = ", ".join(sorted(f"{n} {reason}" for reason, n in reasons.items()))
    head = f"0/{len(nodes)} nodes are available"
    return "", f"{head}: {value}. preemption: {head}: {len(nodes)} Preemption is not helpful for scheduling."


def _against(pod: Object, node: Object, here: list[Object]) -> list[str]:
    """Why the pod can't be on this node."""
    spec, of = pod["spec"], labels(node) | {"kubernetes.io/hostname": place(node)[1]}
    if node["spec"].get("unschedulable"):
        return ["node(s) were unschedulable"]
    for taint in node["spec"].get("taints") or []:
        if taint["effect"] != "PreferNoSchedule" and not tolerates(spec.get("tolerations") or [], taint):
            return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
    selected = all(of.get(k) == v for k, v in (spec.get("nodeSelector") or {}).items())
    if not selected or (affinity and not any(matches(t, of) for t in affinity["nodeSelectorTerms"])):
        return ["node(s) didn't match Pod's node affinity/selector"]
    if any(_repels(pod, other) or _repels(other, pod) for other in here):
        return ["node(s) didn't match pod anti-affinity rules"]
    room = {k: quantity(v) for k, v in (node.get("status", {}).get("allocatable") or {}).items()}
    room.setdefault("pods", PODS)
    asked = requests(spec) | {"pods": Decimal(1)}
    used: dict[str, Decimal] = defaultdict(Decimal)
    for other in here:
        for name, value in (requests(other["spec"]) | {"pods": Decimal(1)}).items():
            used[name] += value
    short = [name for name, value in asked.items() if value and used[name] + value > room.get(name, Decimal(0))]
    return ["Too many pods" if name == "pods" else f"Insufficient {name}" for name in short]


def _repels(pod: Object, other: Object) -> bool:
    """Whether the pod's required anti-affinity forbids that one on its host."""
    rules = (pod["spec"].get("affinity") or {}).get("podAntiAffinity") or {}
    for term in rules.get(REQUIRED) or []:
        assert term["topologyKey"] == "kubernetes.io/hostname", "the tests' scheduler knows hosts alone"
        near = place(other)[0] in (term.get("namespaces") or [place(pod)[0]])
        if near and place(pod) != place(other) and matches(term.get("labelSelector") or {}, labels(other)):
            return True
    return False


def _bind(storage: Storage, pod: Object, node: str) -> None:
    # Over the version that was read: who bound it meanwhile, and perhaps runs it, was faster.
    bound = storage.update("Pod", place(pod)[0], pod | {"spec": pod["spec"] | {"nodeName": node}})
    conditions = with_condition(bound, "PodScheduled", "True", "", "")
    set_status(storage, bound, phase="Pending", conditions=conditions)


def _unschedulable(storage: Storage, pod: Object, message: str) -> None:
    conditions = with_condition(pod, "PodScheduled", "False", "Unschedulable", message)
    if conditions != (pod.get("status") or {}).get("conditions"):
        set_status(storage, pod, phase="Pending", conditions=conditions)
        event(storage, pod, "Warning", "FailedScheduling", message, "default-scheduler")
