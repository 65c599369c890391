"""Rules on a gang against Karpenter's pools for training, where the manifests have any: which one can take it."""

from __future__ import annotations

from k8s.lint.charges import quota
from k8s.lint.karpenter import gpu_pools
from k8s.lint.kueue import flavours_with_devices
from k8s.lint.manifests import Manifests
from k8s.lint.pods import GPU, Pods, where
from k8s.lint.rules import Hits, rule
from k8s.lint.tree import Node, labels, quantity, rows, sub, text, texts

OWN_LABELS = ("kubernetes.io", "k8s.io", "karpenter.sh", "k8s.aws")
"""Domains of labels that nodes get without the pool's saying so."""


@rule("error", fix="Let a pool offer what the gang selects, with taints that it tolerates and limits that hold it.")
def no_pool(seen: Manifests) -> Hits:
    """Karpenter makes no node for a pod that fits none of its pools, nor beyond their limits: the gang waits until the
    launch gives up, and only Karpenter's log says why."""
    pools = gpu_pools(seen)
    for workload in seen.trainings if pools else []:
        for pods in (p for p in workload.pods if p.gpus):
            refused = [_refusal(pool, pods) for pool in pools]
            if all(refused):
                reasons = [f"{text(p, 'metadata', 'name')}: {r}" for p, r in zip(pools, refused, strict=True)]
                yield pods.where, "; ".join(reasons)
        with_devices = [p for p in workload.pods if p.gpus]
        asked = sum(p.count * p.gpus for p in with_devices)
        open_to_it = [pool for pool in pools if any(not _refusal(pool, p) for p in with_devices)]
        limits = [sub(pool, "spec", "limits").get(GPU) for pool in open_to_it]
        if limits and None not in limits and (most := sum(map(quantity, limits))) < asked:
            yield where(open_to_it[0], "spec.limits"), f"{GPU}: {most:g} in all, {workload.where} asks {asked}"


@rule("error", fix="Label the nodes of a pool (template.metadata.labels) with what the flavour's nodeLabels say.")
def flavour_without_pool(seen: Manifests) -> Hits:
    """Kueue adds the flavour's labels to the selector of the pods that it admits: no node will ever have them."""
    pools = gpu_pools(seen)
    for flavour in flavours_with_devices(seen) if pools else []:
        chosen = _wanted(flavour)
        if all(_unmet(pool, chosen) for pool in pools):
            yield where(flavour, "spec.nodeLabels"), _unmet(pools[0], chosen)


@rule("warning", fix="Lower the quotas, or raise the pool's limits.")
def quota_over_pool(seen: Manifests) -> Hits:
    """Each flavour counts its quota alone: what several of them promise of one pool's nodes, or one beyond its limits,
    is promised more than once. Gangs that select the pool are admitted, and wait for nodes with part of their pods."""
    flavours = {text(f, "metadata", "name"): f for f in flavours_with_devices(seen)}
    offers = [f for q in seen.of("ClusterQueue") for g in rows(q, "spec", "resourceGroups") for f in rows(g, "flavors")]
    for pool in gpu_pools(seen):
        limit = sub(pool, "spec", "limits").get(GPU)
        promised = [
            (name, quota(offer, GPU))
            for offer in offers
            if (name := text(offer, "name")) in flavours and not _unmet(pool, _wanted(flavours[name]))
        ]
        if limit is not None and (total := sum(amount for _, amount in promised)) > quantity(limit):
            by = ", ".join(f"{name} {amount:g}" for name, amount in promised)
            yield where(pool, "spec.limits"), f"{GPU}: {quantity(limit):g}, promised {total:g} ({by})"


def _wanted(flavour: Node) -> dict[str, list[str]]:
    return {key: [value] for key, value in labels(flavour, "spec", "nodeLabels").items()}


def _refusal(pool: Node, pods: Pods) -> str:
    """Why no node of the pool takes the pods; empty when one does."""
    for taint in rows(pool, "spec", "template", "spec", "taints"):
        if not pods.tolerates(taint):
            return f"taint {text(taint, 'key')}={text(taint, 'value')}:{text(taint, 'effect')} is not tolerated"
    return _unmet(pool, pods.selected)


def _unmet(pool: Node, chosen: dict[str, list[str]]) -> str:
    """The first selection that no node of the pool meets; empty without one."""
    own = labels(pool, "spec", "template", "metadata", "labels")
    requirements = rows(pool, "spec", "template", "spec", "requirements")
    for key, wanted in chosen.items():
        pool_values = [own[key]] if key in own else None
        met = pool_values is None or own[key] in wanted
        for row in (r for r in requirements if text(r, "key") == key):
            pool_values, operator = texts(row, "values"), text(row, "operator")
            met &= {"In": bool({*pool_values} & {*wanted}), "NotIn": not {*wanted} <= {*pool_values}}.get(
                operator, operator != "DoesNotExist"
            )
        if pool_values is None and not key.partition("/")[0].endswith(OWN_LABELS):
            met = False
        if not met:
            return f"{key} {', '.join(wanted)}, the pool has {', '.join(pool_values or []) or 'none'}"
    return ""
