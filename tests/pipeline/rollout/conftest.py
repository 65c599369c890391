"""A small real world for the rollout: a store, the local router, an in-memory registry, and scripted metrics."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from pydantic import BaseModel

from pipeline.core import layout
from pipeline.core.iteration import Iteration, identify
from pipeline.core.storage import DatasetRef, ModelRef, Store
from pipeline.recipe import Rollout
from pipeline.rollout.controller import tick
from pipeline.rollout.decision import RolloutDecision, decide
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts
from pipeline.rollout.fold import read_state
from pipeline.rollout.policy import RolloutPolicy, policy_of
from pipeline.rollout.propose import ProposalResult, RolloutCandidate, propose
from pipeline.rollout.record import JudgedCandidate, ModelVersion, Phase, RolloutState
from pipeline.rollout.router import Readiness, RolloutPorts, Split, Tick
from pipeline.rollout.shares import Latencies
from tests.pipeline.rollout.local_router import LocalRouter

R = TypeVar("R", bound=BaseModel)
NAME = "demo"
EACH = 100
"""Requests of a user at a look, where the unit is the user."""
BASE = ModelRef(uri="base", digest="base-digest")
POLICY = policy_of(Rollout(dwell_s=(100.0, 200.0, 100.0), max_p99_latency_ratio=1.1)).model_copy(
    update={"unit": "request", "keep_warm_s": 0.0, "max_look_s": 100.0}
)
"""A router that draws an arm for each request, and a slot that the next candidate may have at once."""
ASKS = POLICY.model_copy(update={"approvers": ("operator", "ada@example.org")})
WARM = POLICY.model_copy(update={"keep_warm_s": 5000.0})


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


def arm(
    requests: float,
    quality: float = 0.7,
    error_rate: float = 0.0,
    seconds: float = 1.0,
    graded: float = 1.0,
    ungraded: float = 0.0,
    users: str = "",
) -> ArmLook:
    """One arm whose requests all took `seconds`. `graded` and `ungraded` are shares of its answers.
    `users`: a letter for those of the arm, who are all alike; "": the unit is the request."""
    answered = requests - round(requests * error_rate)
    counts = {
        "requests": requests,
        "graded": round(answered * graded),
        "correct": round(answered * graded * quality),
        "errors": requests - answered,
        "ungraded": round(answered * ungraded),
    }
    count = round(requests / EACH) if users else 1
    each = UnitCounts(**{name: number / max(1, count) for name, number in counts.items()})
    return ArmLook(
        units={f"{users}{number}" if users else "": each for number in range(count)},
        latencies=Latencies(edges_s=(seconds,), counts=(answered,)),
    )


def slowed(look: ArmLook, over_s: float | None) -> ArmLook:
    """With the requests that took longer than the threshold counted."""
    if over_s is None or not look.latencies.edges_s or look.latencies.edges_s[0] <= over_s:
        return look
    slow = {name: unit.model_copy(update={"slow": unit.requests - unit.errors}) for name, unit in look.units.items()}
    return look.model_copy(update={"units": slow})


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

    requests: int = 40_000
    champion: dict[str, float] = field(default_factory=dict)
    canary: dict[str, float] = field(default_factory=dict)
    spoil: Callable[[LiveMetrics], LiveMetrics | None] = lambda look: look
    really: Callable[[Split], Split] = lambda split: split
    """What routes, where that is not what the router reads."""
    given: list[tuple[Split, LiveMetrics]] = field(default_factory=list)
    users: tuple[str, str] = ("", "")
    """Letters of champion's and canary's users; "": the unit is the request."""

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        split = self.really(split)
        canary = round(self.requests * split.canary_weight / 100)
        good = LiveMetrics(
            champion=slowed(arm(self.requests - canary, users=self.users[0], **self.champion), request.slow_over_s),
            canary=slowed(arm(canary, users=self.users[1], **self.canary), request.slow_over_s),
            window_start=request.since,
            window_end=request.now,
            graded_until=request.now,
        )
        spoilt = self.spoil(good)
        if spoilt is not None and (spoilt == good or not spoilt.canary.units):  # a look without requests counts too
            self.given.append((split, spoilt))
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
            "champion": state.past.champion,
            "previous": state.past.previous,
            "challenger": state.proposal.version if state.active else None,
        }
        self.aliases = {alias: version.version for alias, version in wanted.items() if version}


@dataclass
class World:
    store: Store
    metrics: ScriptedMetrics = field(default_factory=ScriptedMetrics)
    registry: MemoryRegistry = field(default_factory=MemoryRegistry)
    now: float = 1000.0
    folded: tuple[int, RolloutState] | None = None

    def __post_init__(self) -> None:
        self.router = LocalRouter(self.store, NAME)

    @property
    def state(self) -> RolloutState:
        """Read again only when there is an event more: none ever changes."""
        written = len(list(self.store.path(layout.rollout(NAME, "events")).glob("[0-9]*.json")))
        if self.folded is None or self.folded[0] != written:
            self.folded = (written, read_state(self.store, NAME))
        return self.folded[1]

    def propose(
        self,
        digest: str,
        *,
        number: int = 1,
        verdict: str = "PASS",
        data: str = "data",
        policy: RolloutPolicy = POLICY,
        against: ModelRef | None = None,
        judged: str = "",
        **more: Any,
    ) -> ProposalResult:
        """`against`: the champion of its iteration, where that is another one by now. `judged`: another model."""
        past = self.state.past
        iteration = iteration_over(
            against or (past.champion.model if past.champion else BASE), 0 if against else past.promotions, data
        )
        verdict_on = JudgedCandidate(verdict, judged or digest, "bundle")
        version = version_of(digest, number, iteration)
        candidate = RolloutCandidate(version, verdict_on, **{"proposed_by": "launcher", **more})
        return propose(self.store, iteration, candidate, policy, self.now)

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

    def observe(self, **policy: Any) -> None:
        """Propose `new` by a policy with these changes, and tick until its first weight is observed."""
        self.propose("new", policy=POLICY.model_copy(update=policy))
        self.tick_until("observing")

    def set_weight(self, weight: int) -> None:
        """As a person does, at the router."""
        split = self.router.read()
        assert split is not None
        self.router.apply(split.model_copy(update={"canary_weight": weight, "champion_weight": 100 - weight}))

    def weight(self) -> int:
        split = self.router.read()
        return split.canary_weight if split else 0


def decided(world: World, action: str, by: str = "operator") -> Tick:
    decision = RolloutDecision(action=action, reason="a reason", by=by, rollout=world.state.rollout)
    return decide(world.ports(), decision, world.now)


def waiting(world: World, proposed_by: str = "launcher") -> None:
    world.propose("new", policy=ASKS, proposed_by=proposed_by)
    for _ in range(5):
        world.tick(50.0)
    assert (world.state.phase, world.weight()) == (Phase.GATED, 0)


def slot(world: World, **change: object) -> None:
    world.router.ready = lambda m: Readiness(served_digest=m.digest, replicas=1).model_copy(update=change)


@pytest.fixture
def world(tmp_path) -> World:
    return World(Store(tmp_path))


class FusedStore(Store):
    """A store that calls `fuse` right before and right after it publishes an event."""

    fuse: Callable[[], None] = staticmethod(lambda: None)

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self._events: dict[str, BaseModel] = {}

    def read(self, name: str, kind: type[R]) -> R | None:
        """Events never change, and nobody removes one here: each is parsed once."""
        if "/events/" not in name:
            return super().read(name, kind)
        kept = self._events.get(name)
        if kept is None:
            kept = super().read(name, kind)
            if kept is not None:
                self._events[name] = kept
        assert kept is None or isinstance(kept, kind)
        return kept

    def create(self, name: str, record: BaseModel) -> bool:
        self.fuse()
        created = super().create(name, record)
        self.fuse()
        return created
