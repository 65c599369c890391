"""A small real world for the rollout: a store, the local router, an in-memory registry, and scripted metrics."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from pydantic import BaseModel

from pipeline.iteration import Iteration, identify
from pipeline.recipe import Rollout
from pipeline.rollout.controller import RolloutPorts, Tick, tick
from pipeline.rollout.policy import ArmMetrics, LiveMetrics, RolloutPolicy, policy_of
from pipeline.rollout.propose import ProposalResult, propose
from pipeline.rollout.record import JudgedCandidate, ModelVersion, RolloutState, read_state
from pipeline.rollout.router import LocalRouter, Split
from pipeline.storage import DatasetRef, ModelRef, Store

NAME = "demo"
BASE = ModelRef(uri="base", digest="base-digest")
POLICY = policy_of(Rollout(dwell_s=(100.0, 200.0, 100.0), max_p99_latency_ratio=1.1))


def model(digest: str) -> ModelRef:
    return ModelRef(uri=f"models/{digest}", digest=digest)


def iteration_over(champion: ModelRef, number: int = 0, data: str = "data") -> Iteration:
    return identify(number, NAME, champion, DatasetRef(uri="d", rows=1, digest=data), "recipe")


def version_of(digest: str, number: int, iteration: Iteration) -> ModelVersion:
    return ModelVersion(
        name=NAME,
        version=number,
        run_id="run",
        model=model(digest),
        adapter=model(f"{digest}-a"),
        iteration=iteration.id,
    )


def arm(requests: float, quality: float = 0.7, error_rate: float = 0.0, p99: float = 1.0) -> ArmMetrics:
    if not requests:
        return ArmMetrics()
    return ArmMetrics(
        requests=requests,
        graded=requests,
        correct=float(round(requests * quality)),
        errors=float(round(requests * error_rate)),
        latency_p50_s=p99 / 2,
        latency_p99_s=p99,
    )


def split_at(weight: int, epoch: int = 1, rollout: str = "r") -> Split:
    return Split(
        rollout=rollout,
        epoch=epoch,
        champion=model("a"),
        champion_weight=100 - weight,
        canary=model("b"),
        canary_weight=weight,
    )


@dataclass
class ScriptedMetrics:
    """Live metrics of a canary that behaves as told; `spoil` turns a good look into what the source really says."""

    requests: int = 1500
    champion: dict[str, float] = field(default_factory=dict)
    canary: dict[str, float] = field(default_factory=dict)
    spoil: Callable[[LiveMetrics], LiveMetrics | None] = lambda look: look
    given: list[tuple[Split, LiveMetrics]] = field(default_factory=list)

    def look(self, split: Split, look: int, since: float, now: float) -> LiveMetrics | None:
        canary = round(self.requests * split.canary_weight / 100)
        good = LiveMetrics(
            champion=arm(self.requests - canary, **self.champion),
            canary=arm(canary, **self.canary),
            window_start=since,
            window_end=now,
        )
        spoilt = self.spoil(good)
        if spoilt == good:
            self.given.append((split, good))
        return spoilt


@dataclass
class MemoryRegistry:
    """What `project` does to a registry, without one; `down` makes it unreachable."""

    aliases: dict[str, int] = field(default_factory=dict)
    down: bool = False

    def __call__(self, state: RolloutState) -> None:
        if self.down:
            raise ConnectionError("registry is down")
        assert state.proposal is not None
        wanted = {
            "champion": state.champion,
            "previous": state.previous,
            "challenger": state.proposal.version if state.active else None,
        }
        self.aliases = {alias: version.version for alias, version in wanted.items() if version}


@dataclass
class World:
    store: Store
    metrics: ScriptedMetrics = field(default_factory=ScriptedMetrics)
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)
    now: float = 1000.0

    def __post_init__(self) -> None:
        self.router = LocalRouter(self.store, NAME)

    @property
    def state(self) -> RolloutState:
        return read_state(self.store, NAME)

    def propose(
        self, digest: str, *, number: int = 1, verdict: str = "PASS", data: str = "data", policy: RolloutPolicy = POLICY
    ) -> ProposalResult:
        state = self.state
        iteration = iteration_over(state.champion.model if state.champion else BASE, state.promotions, data)
        return propose(
            self.store,
            iteration,
            version_of(digest, number, iteration),
            JudgedCandidate(verdict, digest, "bundle"),
            policy,
            self.now,
        )

    def ports(self) -> RolloutPorts:
        return RolloutPorts(self.store, NAME, self.router, self.registry, self.metrics, intact=lambda _: True)

    def tick(self, after_s: float = 0.0) -> Tick:
        self.now += after_s
        return tick(self.ports(), self.now)

    def tick_until(self, *phases: str, every_s: float = 50.0, limit: int = 60) -> RolloutState:
        for _ in range(limit):
            if self.state.phase in phases:
                return self.state
            self.tick(every_s)
        raise AssertionError(f"{self.state.phase} after {limit} ticks, not {phases}")

    def weight(self) -> int:
        split = self.router.read()
        return split.canary_weight if split else 0


@pytest.fixture
def world(tmp_path) -> World:
    return World(Store(tmp_path))


class FusedStore(Store):
    """A store that calls `fuse` right before and right after it publishes an event."""

    fuse: Callable[[], None] = staticmethod(lambda: None)

    def create(self, name: str, record: BaseModel) -> bool:
        self.fuse()
        created = super().create(name, record)
        self.fuse()
        return created
