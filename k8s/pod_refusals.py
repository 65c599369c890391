"""Why a gang's pods are not made, in the words of whoever forbids them, and whether waiting can help.

A namespace's ResourceQuota, LimitRange, Pod Security or an admission policy forbids pods, not the object that makes
them: the object is taken, and its controller says in an Event why no pod comes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from k8s.lint.tree import quantity

_FORBIDDEN = re.compile(
    r"is forbidden: |denied the request|denied request|must specify|serviceaccount .{0,80} not found"
)
_QUOTA = re.compile(
    r"exceeded quota: (?P<name>[^,]+), requested: (?P<requested>.+), used: .+, limited: (?P<limited>.+)"
)
_ADVICE = {
    "exceeded quota": "Ask for less, or raise that ResourceQuota",
    "failed quota": "Name what that ResourceQuota counts, or take it away",
    "violates PodSecurity": "Change the pod, or what the namespace enforces (pod-security.kubernetes.io/enforce)",
    "minimum ": "Ask for more, or lower that LimitRange",
    "per Container": "Ask for less, or raise that LimitRange",
    "per Pod": "Ask for less, or raise that LimitRange",
    "serviceaccount": "Create it (k8s/manifests/bases/rbac), or correct compute.kubernetes.service_account",
    "service account": "Create it (k8s/manifests/bases/rbac), or correct compute.kubernetes.service_account",
    "ValidatingAdmissionPolicy": "Change the recipe, or what that policy allows (k8s/manifests/bases/admission)",
}
"""Words of a refusal, and what helps."""


CREATED = "SuccessfulCreate"
"""Reason of a controller's Event of each pod that it creates."""


class PodRefusal(NamedTuple):
    why: str
    """With what to do about it."""
    lasting: bool
    """Whether an empty namespace would forbid it too."""


def pod_refusal(events: Iterable[Mapping[str, Any]], gang: str, nodes: int) -> PodRefusal | None:
    """What the newest Event about an object of this gang says of pods that are forbidden; None without one, and where a
    pod of that object was made since: whoever forbade it does not any more.

    `gang`: its name, with which the names of all its objects begin: that of attempt 1 begins attempt 10's as well.
    `nodes`: as many pods of one size.
    """
    about = [each for each in events if f"{each['involvedObject'].get('name', '')}-".startswith(f"{gang}-")]
    refusals = [each for each in about if _FORBIDDEN.search(each.get("message", ""))]
    newest = max(refusals, key=_at, default=None)
    if newest is None or any(each.get("reason") == CREATED and _is_later(each, newest) for each in about):
        return None
    message = newest["message"]
    advice = next((text for words, text in _ADVICE.items() if words in message), "Change what it names")
    return PodRefusal(f"{message.removeprefix('Error creating: ')}. {advice}", not _may_fit(message, nodes))


def _is_later(creation: Mapping[str, Any], refusal: Mapping[str, Any]) -> bool:
    """Of the same object; in the same second the refusal stands, for a gang of two may get its first pod alone."""
    same = creation["involvedObject"].get("name") == refusal["involvedObject"].get("name")
    return same and _at(creation) > _at(refusal)


def _at(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


def _may_fit(message: str, nodes: int) -> bool:
    """Whether a ResourceQuota that others fill would have room for all pods of the gang."""
    match = _QUOTA.search(message)
    if match is None:
        return False
    requested, limited = (_amounts(match[side]) for side in ("requested", "limited"))
    return all(requested[name] * nodes <= limited.get(name, 0.0) for name in requested)


def _amounts(text: str) -> dict[str, float]:
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): quantity(value) for name, _, value in pairs}


_CLAUSE = re.compile(
    r", (?=untolerated taint|flavor \S+ (?:doesn't|does not|not)|insufficient |resource \S+ unavailable )"
)
_FLAVOR = re.compile(r"in flavor ([^\s,]+)")
_NEVER_MEANT = re.compile(r"untolerated taint|flavor \S+ (?:doesn't|does not) match|maximum capacity \(0\)")


def relevant(words: str) -> str:
    """Kueue's words on quota without the flavours that the gang could never be charged to: whose taints it does not
    tolerate, whose nodes it does not select, that have none of what it asks for. All of them where none is left."""
    head, colon, text = words.partition(": couldn't assign flavors to pod set ")
    pod_set, comma, problems = text.partition(": ")
    if not colon or not comma:
        return words
    clauses = _CLAUSE.split(problems)
    never = {match[1] for clause in clauses if _NEVER_MEANT.search(clause) and (match := _FLAVOR.search(clause))}
    kept = [
        clause
        for clause in clauses
        if not _NEVER_MEANT.search(clause) and not ((match := _FLAVOR.search(clause)) and match[1] in never)
    ]
    return f"{head}{colon}{pod_set}: {', '.join(kept or clauses)}"
