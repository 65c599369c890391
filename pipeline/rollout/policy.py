"""The rule of one rollout: the recipe's section `rollout`, frozen whole into the record at the proposal; and who may
approve a candidate: a person whom it names, and who did not propose it."""

import os
import pwd
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Annotated, Literal

from pipeline.recipe import Rollout
from pipeline.recipe.section import Operational

Unit = Literal["user", "request"]
"""What a router randomises: a user where it is sticky, else each request."""


class RolloutPolicy(Rollout):
    """The section, and what else the rollout hangs on."""

    max_look_s: Annotated[float, Operational]
    """Longest time that one look adds to a dwell: twice `look_every_s`."""
    unit: Annotated[Unit, Operational]
    """What the router randomises."""
    gradable: Annotated[bool, Operational]
    """Whether answers can be graded at all. If not, requests, errors and latencies alone decide."""
    by_feedback: Annotated[bool, Operational]
    """Whether what users say is all that grades: of an unrated answer, nothing is known."""

    @property
    def canary_weights(self) -> tuple[int, ...]:
        """Percent on the canary, stage by stage: the last weight leaves the holdback with the champion."""
        return tuple(min(weight, 100 - self.holdback) for weight in self.weights)


def policy_of(section: Rollout, gradable: bool = True, rated: bool = False) -> RolloutPolicy:
    """The policy that a recipe's section spells. `gradable`: whether there are references or a judge to grade answers
    by, and texts to grade; `rated`: whether users rate answers, which grades where nothing else does. Raises ValueError
    when the stages do not lead to 100%, or leave nothing to compare with."""
    weights, dwell = section.weights, section.dwell_s
    rising = all(a < b for a, b in pairwise(weights))
    if len(weights) < 2 or not rising or weights[-1] != 100:
        raise ValueError(f"rollout.weights is {weights}. Give two or more rising percentages that end in 100.")
    if len(dwell) != len(weights) or min(dwell) < 0:
        raise ValueError(f"rollout.dwell_s is {dwell}. Give one time in seconds for each of the weights {weights}.")
    if section.holdback == 0 or weights[-2] >= 100 - section.holdback:
        raise ValueError(
            f"rollout.holdback is {section.holdback} and the last weight before 100 is {weights[-2]}. The last stage "
            f"needs a champion to compare with and more canary than the stage before it: give a holdback between 1 "
            f"and {99 - weights[-2]}."
        )
    silent = section.traffic.kind == "gateway" and section.traffic.record == "operations"
    readable = gradable and not silent
    derived = {
        "max_look_s": 2 * section.look_every_s,
        "unit": "user" if section.traffic.kind == "gateway" else "request",
        "gradable": readable or rated,
        "by_feedback": rated and not readable,
    }
    return RolloutPolicy.model_validate({**dict(section), **derived})


LAUNCHED_BY = "launched_by"
"""On a run: the account that launched it."""


def approval_refusal(by: str, approvers: Sequence[str], proposed_by: str) -> str:
    """Why a person may not approve a candidate, or ""."""
    if by not in approvers:
        return f"{by.strip() or 'nobody'} is not among rollout.approvers ({', '.join(approvers) or 'nobody is'})"
    if not proposed_by:
        return "who proposed the candidate is not on record, and the proposer may not approve it: propose it again"
    login, own = (each.casefold().partition("@")[0] for each in (by, proposed_by))
    if login == own:  # `ada@example.org` is the account `ada`
        return f"{by} proposed this candidate as {proposed_by}: somebody else of rollout.approvers has to approve it"
    return ""


def proposer(tags: Mapping[str, str], account: str) -> str:
    """Who proposes in a run with these tags: a schedule or a sensor, else who launched it, else the step's account."""
    for kind in ("schedule", "sensor"):
        if name := tags.get(f"dagster/{kind}_name"):
            return f"{kind} {name}"
    return tags.get(LAUNCHED_BY, "") or account


def account() -> str:
    """The login name of whoever runs this; the number of the account where it has no name, as in a container."""
    with suppress(KeyError):
        return pwd.getpwuid(os.getuid()).pw_name
    return f"uid {os.getuid()}"
