"""What Kueue would charge a workload to: for each of its pod sets and each resource group of the queue, one flavour.

As Kueue 0.19 decides, on the manifests alone: flavours are tried in the order of the queue; one takes a pod set when
its taints are tolerated and its node labels do not contradict the pods' selectors and required affinity; both are read
over the label keys of that flavour alone (kueue#12449, in 0.17 and 0.18 too; before it over the keys of all flavours).
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from k8s.lint.manifests import Manifests
from k8s.lint.pods import QUEUE, Pods, Workload, namespace
from k8s.lint.tree import Node, labels, quantity, rows, sub, text, texts

SIDES = ("requests", "limits")


@dataclass(frozen=True)
class Charge:
    """Of one pod set."""

    pods: Pods
    flavours: dict[str, str] = field(default_factory=dict[str, str])
    """By resource, where the whole pod set fits."""
    asked: dict[str, float] = field(default_factory=dict[str, float])
    """By resource, in its base unit."""
    short: dict[str, tuple[float, float]] = field(default_factory=dict[str, tuple[float, float]])
    """By resource for which no flavour has room: the most that any may give, and what is asked of it."""


def cluster_queue(manifests: Manifests, workload: Workload) -> Node | None:
    """The ClusterQueue behind the workload's LocalQueue; None without either."""
    queue = labels(workload.object, "metadata", "labels").get(QUEUE, "")
    here = (namespace(workload.object), queue)
    names = [
        text(local, "spec", "clusterQueue")
        for local in manifests.of("LocalQueue")
        if (namespace(local), text(local, "metadata", "name")) == here
    ]
    return next((q for q in manifests.of("ClusterQueue") if text(q, "metadata", "name") in names), None)


def charges(manifests: Manifests, workload: Workload) -> list[Charge]:
    """Of each pod set in turn, in an empty queue; empty without a queue. A queue of a cohort may borrow any amount."""
    queue = cluster_queue(manifests, workload)
    if queue is None:
        return []
    known = {text(flavour, "metadata", "name"): flavour for flavour in manifests.of("ResourceFlavor")}
    borrows = any(text(queue, "spec", key) for key in ("cohortName", "cohort"))
    taken: dict[tuple[str, str], float] = defaultdict(float)
    result: list[Charge] = []
    for pods in workload.all_pods:
        charge = Charge(pods, asked=_asked(queue, pods))
        covered: set[str] = set()
        for group in rows(queue, "spec", "resourceGroups"):
            mine = {r: v for r, v in charge.asked.items() if r in texts(group, "coveredResources") and r not in covered}
            covered |= {*mine}
            offers = [
                (text(offer, "name"), {r: math.inf if borrows else quota(offer, r) for r in mine})
                for offer in rows(group, "flavors")
                if takes(known.get(text(offer, "name")), pods)
            ]
            for name, offered in offers:
                if all(taken[name, r] + value <= offered[r] for r, value in mine.items()):
                    charge.flavours.update(dict.fromkeys(mine, name))
                    break
            else:
                charge.short.update(_short(mine, offers, taken))
        charge.short.update({r: (0.0, value) for r, value in charge.asked.items() if r not in covered})
        for resource, name in charge.flavours.items():
            taken[name, resource] += charge.asked[resource]
        result.append(charge)
    return result


def takes(flavour: Node | None, pods: Pods) -> bool:
    """Whether Kueue may give the pods this flavour. One that the manifests do not make takes all."""
    tolerated = rows(flavour, "spec", "tolerations")
    return pods.allows(labels(flavour, "spec", "nodeLabels")) and all(
        pods.tolerates(taint, tolerated) for taint in rows(flavour, "spec", "nodeTaints")
    )


def quota(offer: Node, resource: str) -> float:
    """Of a flavour within a queue, its own."""
    return max(
        (quantity(r.get("nominalQuota")) for r in rows(offer, "resources") if text(r, "name") == resource), default=0.0
    )


def describe(manifests: Manifests, workload: Workload) -> list[str]:
    """A line for each pod set: how many pods, and of which flavour Kueue would take what they ask for."""
    queue = text(cluster_queue(manifests, workload), "metadata", "name")
    lines: list[str] = []
    for charge in charges(manifests, workload):
        by_flavour: dict[str, list[str]] = {}
        for resource, name in charge.flavours.items():
            by_flavour.setdefault(name, []).append(f"{_amount(resource, charge.asked[resource])} {resource}")
        parts = [f"flavour {name}: {', '.join(amounts)}" for name, amounts in by_flavour.items()]
        parts += [f"nothing that has room for {resource}" for resource in charge.short]
        lines.append(f"{charge.pods.where} x {charge.pods.count}: ClusterQueue {queue}, {'; '.join(parts)}")
    return lines


def _short(
    asked: dict[str, float], offers: list[tuple[str, dict[str, float]]], taken: dict[tuple[str, str], float]
) -> dict[str, tuple[float, float]]:
    """The resources that no flavour has enough of; all of them where each is short of another one."""
    lacking: dict[str, tuple[float, float]] = {}
    for resource, value in asked.items():
        room = [(offered[resource], taken[name, resource] + value) for name, offered in offers]
        if all(most < wanted for most, wanted in room):
            lacking[resource] = max(room, default=(0.0, value))
    return lacking or {
        resource: max((offered[resource], taken[name, resource] + value) for name, offered in offers)
        for resource, value in asked.items()
    }


def _asked(queue: Node, pods: Pods) -> dict[str, float]:
    """Of each resource, by all pods of the set. Pods themselves count where the queue covers them."""
    names = {str(name) for c in pods.containers for side in SIDES for name in sub(c.node, "resources", side)}
    asked = {name: pods.count * pods.asks(name, "requests") for name in sorted(names)}
    if any("pods" in texts(group, "coveredResources") for group in rows(queue, "spec", "resourceGroups")):
        asked["pods"] = pods.count
    return {name: amount for name, amount in asked.items() if amount}


def _amount(resource: str, value: float) -> str:
    return f"{value / 2**30:g}Gi" if resource in ("memory", "ephemeral-storage") else f"{value:g}"
