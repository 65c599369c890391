"""What a rollout needs of the world: the router and its split (who answers which share of the requests), the slots, the
metrics, a registry, and people."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, Self

from pydantic import model_validator

from pipeline.core.storage import ModelRef, Record, Store, digest_dir
from pipeline.rollout.evidence import LiveMetrics, LookRequest
from pipeline.rollout.policy import RolloutPolicy
from pipeline.rollout.record import RolloutState

Arm = Literal["champion", "canary"]


NO_ROLLOUT = "none"
"""In place of a rollout's id: the split of a champion that serves before any rollout asked for one."""


class Split(Record):
    """Weights in percent of two models, named by digest; without a canary, everything goes to the champion. A canary
    with weight 0 is loaded and gets no requests."""

    rollout: str
    """Salts the hash of the requests, so that one rollout's canary users are not the next one's."""
    epoch: int
    """Epoch of the rollout's record that asked for this."""
    champion: ModelRef
    champion_weight: int
    canary: ModelRef | None
    canary_weight: int
    warm: ModelRef | None = None
    """Stays loaded without requests: the way back."""
    expires_at: float | None = None
    """Seconds since 1970 at which the champion serves alone, unless a tick asks again before; None: never."""

    @model_validator(mode="after")
    def _sums_to_100(self) -> Self:
        if self.canary_weight + self.champion_weight != 100 or min(self.canary_weight, self.champion_weight) < 0:
            weights = f"{self.champion_weight} and {self.canary_weight}"
            raise ValueError(f"Weights {weights} are no split. Give two percentages that sum to 100.")
        if self.canary is None and self.canary_weight:
            raise ValueError(f"{self.canary_weight}% goes to a canary that is not there. Name the canary's model.")
        return self

    def routes_like(self, other: Split) -> bool:
        """Whether the same models get the same requests; who asked for it, when, and until when does not matter."""

        def routed(split: Split) -> tuple[str, str, int, str]:
            canary = split.canary.digest if split.canary and split.canary_weight else ""
            return split.rollout, split.champion.digest, split.canary_weight, canary

        return routed(self) == routed(other)


class Unsettled(Record):
    """Weights that were accepted and are not what routes yet, or not for certain."""

    reason: str
    asked: Split | None = None
    """What was asked for last, where the router knows it: a person may have asked for less."""


class Unrouted(Unsettled):
    """Nothing that a rollout could move routes requests, now or later."""

    reason: str = (
        "rollout.traffic is none: nothing is routed here, so no candidate gets requests, nothing is measured on them, "
        "and no candidate is promoted"
    )


def asked_for(read: Split | Unsettled | None) -> Split | None:
    """What a router was asked for last, whether it is in force or not."""
    return read.asked if isinstance(read, Unsettled) else read


class Readiness(Record):
    """What the slot of a model really serves."""

    served_digest: str = ""
    """Digest of the model that its fingerprint names; "" while nothing answers."""
    replicas: int = 0
    """Servers of the model, as far as they answer."""
    reason: str = ""
    """Why it may not have requests; "" when it may."""
    down: bool = False
    """No server answers there."""
    wrong: bool = False
    """It serves another model."""


Identify = Callable[[str, str], str]
"""Digest of the model by which the server at a root URL really answers for a name, by its fingerprint; "" for the name:
for the first of a model that is wanted. Raises ValueError saying why it is none that is known, OSError when it does not
answer."""


class TrafficSplit(Protocol):
    """What a rollout needs from whatever routes requests. Whatever cannot be reached raises OSError or ValueError."""

    def read(self) -> Split | Unsettled | None:
        """The split in force, from what routes itself; None when none was ever applied."""
        ...

    def apply(self, split: Split) -> None:
        """Put a split into force. No effect when one of a later epoch was asked for, or one of the same epoch with a
        lower weight: within an epoch only a person lowers it, and a tick that read it before must not undo that.
        """
        ...

    def ready(self, model: ModelRef) -> Readiness:
        """What the slot that should hold a model really serves."""
        ...


class NoRouter:
    """TrafficSplit of a deployment that has no router. It refuses what an earlier rollout asks of it."""

    def read(self) -> Unrouted:
        return Unrouted()

    def apply(self, split: Split) -> None:
        raise ValueError(
            f"{Unrouted().reason}. Rollout {split.rollout} began with a router: name that in rollout.traffic again, "
            "and its weights follow."
        )

    def ready(self, model: ModelRef) -> Readiness:
        return Readiness(reason=Unrouted().reason)


def route(split: Split, request_id: str) -> Arm:
    """The arm that answers a request under a split: a point in [0, 100) from the salted id, against the weight."""
    head = hashlib.sha256(f"{split.rollout}/{request_id}".encode()).digest()[:8]
    return "canary" if int.from_bytes(head) * 100 < split.canary_weight * 2**64 else "champion"


class LiveMetricsPort(Protocol):
    """Where production's metrics come from. Whatever it raises counts as metrics that are missing."""

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        """What both arms did in a window that `request` allows; None when unknown."""
        ...


Projection = Callable[[RolloutState], None]
"""Makes a registry agree with the record; raises when the registry cannot be reached."""


class NullMetrics:
    def look(self, split: Split, request: LookRequest) -> None:
        return None


def is_intact(model: ModelRef) -> bool:
    folder = Path(model.uri)
    return folder.is_dir() and digest_dir(folder) == model.digest


@dataclass(frozen=True)
class RolloutPorts:
    """The rollout of one model and the world that it reads and moves."""

    store: Store
    model_name: str
    split: TrafficSplit
    project: Projection
    metrics: LiveMetricsPort = NullMetrics()  # noqa: RUF009 (it has no state)
    intact: Callable[[ModelRef], bool] = is_intact
    policy_now: Callable[[str], RolloutPolicy] | None = None
    """By which the candidate of an iteration is reopened; None: by the policy that it had."""


class Tick(Record):
    """The state after a tick or a decision, what could not follow it this time (router, registry, audit log: the
    next tick tries again), and why a decision has no effect."""

    state: RolloutState
    errors: tuple[str, ...] = ()
    refused: str = ""
