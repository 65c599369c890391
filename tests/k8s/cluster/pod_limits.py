"""What a namespace refuses of pods at their creation, in the API server's words: ResourceQuota, LimitRange and the part
of Pod Security that asks who a container runs as. Not: scopes, defaults, ratios, minima.
"""

from __future__ import annotations

from decimal import Decimal

from .kinds import Object
from .objects import ended, labels, place, quantity, requests
from .storage import Storage

ENFORCED = "pod-security.kubernetes.io/enforce"


def forbidden(storage: Storage, namespace: str, name: str, spec: Object) -> str:
    """Why the namespace takes no such pod; "" where it does. `name`: or the first part of one that is generated."""
    why = _security(storage, namespace, spec) or _limits(storage, namespace, spec) or _quota(storage, namespace, spec)
    return f'pods "{name}" is forbidden: {why}' if why else ""


def _security(storage: Storage, namespace: str, spec: Object) -> str:
    level = labels(storage.get("Namespace", "", namespace)).get(ENFORCED, "")
    root = not (spec.get("securityContext") or {}).get("runAsNonRoot")
    if level != "restricted" or not root:
        return ""
    what = "runAsNonRoot != true (pod or container must set securityContext.runAsNonRoot=true)"
    return f'violates PodSecurity "restricted:latest": {what}'


def _limits(storage: Storage, namespace: str, spec: Object) -> str:
    against: list[str] = []
    for ranges in storage.list("LimitRange", namespace)[0]:
        for limit in (each for each in ranges["spec"]["limits"] if each["type"] == "Container"):
            for container in spec["containers"]:
                asked = (container.get("resources") or {}).get("limits") or {}
                against += [
                    f"maximum {resource} usage per Container is {most}, but limit is {asked[resource]}"
                    for resource, most in (limit.get("max") or {}).items()
                    if resource in asked and quantity(asked[resource]) > quantity(most)
                ]
    return against[0] if len(against) == 1 else f"[{', '.join(against)}]" if against else ""


def _quota(storage: Storage, namespace: str, spec: Object) -> str:
    wanted = _counted(spec)
    for rule in storage.list("ResourceQuota", namespace)[0]:
        hard = {resource: quantity(value) for resource, value in rule["spec"]["hard"].items() if resource in wanted}
        pods = [pod for pod in storage.list("Pod", namespace)[0] if not ended(pod)]
        used = {resource: sum(_counted(pod["spec"]).get(resource, Decimal(0)) for pod in pods) for resource in hard}
        over = [resource for resource in hard if used[resource] + wanted[resource] > hard[resource]]
        if over:
            rows = (("requested", wanted), ("used", used), ("limited", hard))
            said = ", ".join(f"{word}: {','.join(f'{r}={each[r]}' for r in over)}" for word, each in rows)
            return f"exceeded quota: {place(rule)[1]}, {said}"
    return ""


def _counted(spec: Object) -> dict[str, Decimal]:
    asked = requests(spec)
    return {"pods": Decimal(1), **asked, **{f"requests.{resource}": value for resource, value in asked.items()}}
