"""Which iterations are not made anew: those whose models serve, or ever did."""

from pathlib import Path

import pytest

from assets.records import VERSION
from jobs.retry import check_rollout
from pipeline.core import layout
from pipeline.core.iteration import Iteration, identify
from pipeline.core.storage import DatasetRef, ModelRef, Store
from pipeline.recipe import Rollout
from pipeline.rollout.fold import read_state
from pipeline.rollout.policy import policy_of
from pipeline.rollout.record import (
    ModelVersion,
    Phase,
    RolloutEvent,
    RolloutStep,
    append,
    step_event,
)
from tests.pipeline.rollout.reports import proposal

WAY = (Phase.GATED, Phase.SHIFTING, Phase.OBSERVING)


def rolled_out(store: Store, number: int, *phases: Phase) -> Iteration:
    """An iteration of the model `desk` whose version went through these phases after its only stage."""
    data, base = DatasetRef(uri="d", rows=1, digest="d"), ModelRef(uri="base", digest=f"{number}" * 64)
    iteration = identify(number, "desk", base, data, "recipe")
    model = ModelRef(uri="m", digest=f"{number + 1}" * 64)
    version = ModelVersion(
        name="desk", version=number, run_id="run", model=model, adapter=model, iteration=iteration.id
    )
    store.write(layout.iteration(iteration.id, VERSION.name), version)
    policy = policy_of(Rollout(weights=(5, 100), dwell_s=(1.0, 1.0), keep_warm_s=0.0))
    opened = proposal(rollout=f"{number:012x}").model_copy(update={"version": version, "policy": policy})
    state = read_state(store, "desk")
    event = RolloutEvent(
        epoch=state.epoch + 1, at=float(number), rollout=opened.rollout, phase=Phase.PROPOSED, proposal=opened
    )
    assert append(store, "desk", state, event)
    for phase in (*WAY, *phases):
        state = read_state(store, "desk")
        assert append(
            store, "desk", state, step_event(state, float(number), RolloutStep(phase=phase, reason="a step", stage=0))
        )
    return iteration


def test_no_champion_s_iteration_is_made_anew(tmp_path: Path) -> None:
    """The third one back as little as the one that serves; what never served may be."""
    store = Store(tmp_path)
    champions = [rolled_out(store, number, Phase.PROMOTED) for number in (1, 2, 3, 4)]
    taken_back = rolled_out(store, 5, Phase.ROLLING_BACK, Phase.ABORTED)
    running = rolled_out(store, 6)
    for iteration in (*champions, running):
        with pytest.raises(ValueError, match="is in the traffic or was promoted"):
            check_rollout(store, iteration, "policy_checkpoint")
        check_rollout(store, iteration, "canary")
    check_rollout(store, taken_back, "policy_checkpoint")
