"""Kueue's arithmetic: which flavour of a ClusterQueue each resource of a pod set is taken from, and what is in use."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from decimal import Decimal

from .kinds import Object
from .objects import place, quantity, requests
from .scheduler import REQUIRED, matches, tolerates

Usage = dict[tuple[str, str, str], Decimal]
"""By ClusterQueue, flavour and resource."""


def usage(workloads: Iterable[Object]) -> Usage:
    """Of the workloads that hold a reservation."""
    used: Usage = defaultdict(Decimal)
    for workload in workloads:
        if admission := (workload.get("status") or {}).get("admission"):
            add(used, admission)
    return used


def add(used: Usage, admission: Object) -> None:
    for assignment in admission["podSetAssignments"]:
        for resource, flavor in assignment["flavors"].items():
            used[admission["clusterQueue"], flavor, resource] += quantity(assignment["resourceUsage"][resource])


def assign(queue: Object, flavors: dict[str, Object], used: Usage, sets: list[Object]) -> tuple[list[Object], str]:
    """An assignment for each pod set, or why the workload doesn't fit, as Kueue says it."""
    name = place(queue)[1]
    taken: Usage = defaultdict(Decimal)
    assignments: list[Object] = []
    for pods in sets:
        spec, count = pods["template"]["spec"], pods["count"]
        asked = {r: v * count for r, v in (requests(spec) | {"pods": Decimal(1)}).items() if v}
        groups = queue["spec"].get("resourceGroups") or []
        covered = {r for g in groups for r in g["coveredResources"]}
        problems = [f"resource {r} unavailable in ClusterQueue" for r in asked if r not in covered and r != "pods"]
        chosen: dict[str, str] = {}
        for group in groups:
            mine = {r: v for r, v in asked.items() if r in group["coveredResources"]}
            tried: list[str] = []
            for offer in group["flavors"] if mine else []:
                against = _against(name, offer, flavors.get(offer["name"]), spec, mine, used, taken)
                if not against:
                    chosen |= {r: str(offer["name"]) for r in mine}
                    break
                tried += against
            else:
                problems += tried
        if problems:
            return [], f"couldn't assign flavors to pod set {pods['name']}: {', '.join(problems)}"
        for resource, flavor in chosen.items():
            taken[name, flavor, resource] += asked[resource]
        amounts = {r: _text(asked[r]) for r in chosen}
        assignments.append({"name": pods["name"], "count": count, "flavors": chosen, "resourceUsage": amounts})
    return assignments, ""


def _against(
    queue: str, offer: Object, flavor: Object | None, spec: Object, asked: dict[str, Decimal], used: Usage, taken: Usage
) -> list[str]:
    """Why this flavour can't take the pod set."""
    name = offer["name"]
    if flavor is None:
        return [f"flavor {name} not found"]
    of = flavor["spec"].get("nodeLabels") or {}
    tolerations = (spec.get("tolerations") or []) + (flavor["spec"].get("tolerations") or [])
    for taint in flavor["spec"].get("nodeTaints") or []:
        if not tolerates(tolerations, taint):
            shown = f"{{{taint['key']} {taint.get('value', '')} {taint['effect']} <nil>}}"
            return [f"untolerated taint {shown} in flavor {name}"]
    if not _selected(spec, of):
        return [f"flavor {name} doesn't match node affinity"]
    quotas = {r["name"]: quantity(r["nominalQuota"]) for r in offer["resources"]}
    against: list[str] = []
    for resource, value in asked.items():
        before, quota = taken[queue, name, resource], quotas[resource]
        missing = used[queue, name, resource] + before + value - quota
        if before + value > quota:
            shown = (
                f"previously considered podsets requests ({_text(before)}) + current podset request ({_text(value)})"
            )
            against.append(
                f"insufficient quota for {resource} in flavor {name}, {shown} > maximum capacity ({_text(quota)})"
            )
        elif missing > 0:
            against.append(f"insufficient unused quota for {resource} in flavor {name}, {_text(missing)} more needed")
    return against


def _selected(spec: Object, of: dict[str, str]) -> bool:
    """Of a pod's selector and required affinity Kueue reads the label keys that the flavour itself names."""
    if any(of[k] != v for k, v in (spec.get("nodeSelector") or {}).items() if k in of):
        return False
    affinity = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    terms = [
        {"matchExpressions": [e for e in term.get("matchExpressions") or [] if e["key"] in of]}
        for term in affinity.get("nodeSelectorTerms") or []
    ]
    return not terms or any(matches(term, of) for term in terms)


def _text(value: Decimal) -> str:
    """Of a quantity: whole, or in thousandths."""
    return str(int(value)) if value == int(value) else f"{int(value * 1000)}m"
