"""What a rollout needs of the world: the traffic, the metrics, the slots, a registry, and people."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.core.storage import ModelRef, Record, Store, digest_dir
from pipeline.rollout.evidence import LiveMetrics, LookRequest
from pipeline.rollout.record import RolloutState
from pipeline.rollout.router import Split, TrafficSplit


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
    notify: Callable[[], str] = str
    """Tells people what the record has to tell (notices.py); why that failed, or ""."""
    warm: Callable[[ModelRef], str] = lambda model: ""
    """Has a model's servers answer recent prompts before each weight; why they cannot, or "" (probe.py)."""


class Tick(Record):
    """The state after one tick, and what could not follow it this time: router, registry, audit log or notices."""

    state: RolloutState
    errors: tuple[str, ...] = ()
