"""Why a gang's pods are not made, in the words of whoever forbids them, and whether waiting can help: its object is
taken, and its controller says in an Event why no pod comes."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from k8s.lint.rules import quantity

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
    about = [each for each in events if f"{_of(each)}-".startswith(f"{gang}-")]
    newest = max((each for each in about if _FORBIDDEN.search(each.get("message", ""))), key=_at, default=None)
    if newest is None:
        return None
    made = [each for each in about if each.get("reason") == CREATED and _of(each) == _of(newest)]
    if any(_at(each) > _at(newest) for each in made):  # in one second it stands: a gang may get its first pod alone
        return None
    message = newest["message"]
    advice = next((text for words, text in _ADVICE.items() if words in message), "Change what it names")
    return PodRefusal(f"{message.removeprefix('Error creating: ')}. {advice}", not _may_fit(message, nodes))


def _of(event: Mapping[str, Any]) -> str:
    return event["involvedObject"].get("name", "")


def _at(event: Mapping[str, Any]) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"])


SIDES = ("requested", "limited")


def _may_fit(message: str, nodes: int) -> bool:
    """Whether a ResourceQuota that others fill would have room for all pods of the gang."""
    match = _QUOTA.search(message)
    if match is None:
        return False
    requested, limited = (dict(each.strip().split("=") for each in match[side].split(",")) for side in SIDES)
    return all(quantity(value) * nodes <= quantity(limited.get(name, "0")) for name, value in requested.items())
