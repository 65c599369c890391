"""A weight that a person set to 0 at a real gateway whose lease runs out: it stays until a person raises it."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from pipeline.core import layout
from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef
from pipeline.rollout.controller import tick
from pipeline.rollout.decision import RolloutDecision, decide
from pipeline.rollout.fold import read_state
from pipeline.rollout.propose import RolloutCandidate, propose
from pipeline.rollout.record import JudgedCandidate, ModelVersion, Phase, RolloutState
from pipeline.rollout.router import RolloutPorts, Split, Unsettled, asked_for, without_canary
from tests.pipeline.rollout.conftest import POLICY, ScriptedMetrics
from tests.pipeline.rollout.gateway.world import CANARY, CHAMPION, NAME, World, awaited, user_of, world


class Rollout:
    """A canary at 5% of a gateway that runs."""

    def __init__(self, gateway: World) -> None:
        self.gateway, store = gateway, gateway.store
        iteration = identify(0, NAME, CHAMPION, DatasetRef(uri="d", rows=1, digest="data"), "recipe")
        version = ModelVersion(name=NAME, version=1, run_id="r", model=CANARY, adapter=CANARY, iteration=iteration.id)
        candidate = RolloutCandidate(version, JudgedCandidate("PASS", CANARY.digest, "bundle"))
        policy = POLICY.model_copy(update={"lease_s": 3600.0, "dwell_s": (1e6, 1e6, 1e6), "max_look_s": 60.0})
        gateway.port._identify = lambda url: CANARY.digest if url == gateway.canary.url else CHAMPION.digest
        self.ports = RolloutPorts(
            store, NAME, gateway.port, lambda state: None, ScriptedMetrics(), intact=lambda model: True
        )
        propose(store, iteration, candidate, policy, time.time())
        awaited(lambda: self.tick().phase is Phase.OBSERVING)

    def tick(self) -> RolloutState:
        return tick(self.ports, time.time()).state

    def weight(self) -> int:
        read = self.gateway.port.read()
        assert isinstance(read, Split), read
        return read.canary_weight

    def decide(self, action: str) -> None:
        decision = RolloutDecision(action=action, reason="seen", by="ada")  # pyright: ignore[reportArgumentType]
        assert not decide(self.ports, decision, time.time()).refused


@pytest.fixture
def rollout(tmp_path: Path) -> Iterator[Rollout]:
    with world(tmp_path) as gateway:
        yield Rollout(gateway)


def lease_over(rollout: Rollout) -> None:
    """What the file says once its lease is over, where it has one: nobody ticked until then."""
    name = layout.split_file(NAME)
    split = rollout.gateway.store.read(name, Split)
    assert split is not None
    if split.expires_at is not None:
        rollout.gateway.store.write(name, split.model_copy(update={"expires_at": time.time() - 1}))


@pytest.mark.parametrize("first", ["the zero", "the end of the lease"])
def test_a_persons_zero_outlives_the_lease(rollout: Rollout, first: str) -> None:
    assert rollout.weight() == 5
    if first == "the end of the lease":
        lease_over(rollout)
        assert isinstance(rollout.gateway.port.read(), Unsettled)
    asked = asked_for(rollout.gateway.port.read())
    assert asked is not None
    rollout.gateway.port.apply(without_canary(asked))
    if first == "the zero":
        lease_over(rollout)
    assert rollout.weight() == 0, "it has no lease that could end"

    for _ in range(3):
        state = rollout.tick()
        assert (state.phase, state.canary_weight, rollout.weight()) == (Phase.HELD, 0, 0)
    assert "somebody took requests from the canary" in state.reason
    response = rollout.gateway.post(user=user_of("canary", 5))
    assert rollout.gateway.request(response).marks["rollout.served_by"] == "champion"

    rollout.decide("resume")
    assert (read_state(rollout.gateway.store, NAME).canary_weight, rollout.weight()) == (5, 5), "a person may"


def test_a_lease_that_only_ran_out_is_renewed(rollout: Rollout) -> None:
    lease_over(rollout)
    assert isinstance(rollout.gateway.port.read(), Unsettled)
    assert rollout.tick().phase is Phase.OBSERVING
    assert rollout.weight() == 5
