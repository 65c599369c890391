"""What a slot is asked before its first user: the newest prompts of the candidate's iteration, as labelled."""

import json
import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from assets.records import LABELS
from assets.traffic import admission, warmed
from pipeline.core.storage import ModelRef
from pipeline.recipe import Rollout
from pipeline.rollout.fold import read_state
from pipeline.rollout.gateway.split import ServedSlot
from pipeline.rollout.policy import policy_of
from pipeline.rollout.record import ModelVersion, Phase, RolloutEvent, RolloutStep, append, step_event
from pipeline.serving.endpoint import served_name
from tests.iterations import Iterations
from tests.loop import deployment
from tests.pipeline.rollout.gateway.slot_server import response, slot_server
from tests.pipeline.rollout.reports import proposal

pytestmark = pytest.mark.slow
CANDIDATE = ModelRef(uri="models/new", digest="c" * 64)


def test_a_slot_is_asked_what_its_iteration_was_asked(iterations: Iterations, tmp_path: Path) -> None:
    settings = deployment(iterations.first(tmp_path) / "data")
    iteration, log = settings.latest().id, list[str]()
    rows = pq.read_table(LABELS.read(settings.store(), iteration).dataset.uri).sort_by("timestamp").to_pylist()
    with slot_server(served_name("arithmetic", CANDIDATE.digest)) as server:
        assert warmed(settings, (server.url,), CANDIDATE, iteration, log.append) == ""
        newest = [row for row in rows if row["timestamp"] >= rows[-32]["timestamp"]]
        asked = [body["messages"][-1]["content"] for body in server.asked]
        assert len(asked) == 32
        assert {*asked} <= {json.loads(row["prompt"])[-1]["content"] for row in newest}
        assert log == [f"warm-up: 32 recent prompts were asked at {server.url}, and answered to nobody"]
        assert warmed(settings, (server.url,), CANDIDATE, "gone", log.append) == ""
        assert len(server.asked) == 32 and log[-1].startswith("warm-up: none, ")
    assert warmed(settings, (), CANDIDATE, iteration, log.append) == "" and "router alone" in log[-1]


def test_a_canary_that_starts_again_is_warm_before_its_users(iterations: Iterations, tmp_path: Path) -> None:
    """The champion is not kept from its users, and before the first weight a tick looks at the slot."""
    settings = deployment(iterations.first(tmp_path) / "data")
    store, name, log = settings.store(), served_name("arithmetic", CANDIDATE.digest), list[str]()
    version = ModelVersion(
        name="arithmetic", version=7, run_id="run", model=CANDIDATE, adapter=CANDIDATE, iteration=settings.latest().id
    )
    opened = proposal().model_copy(update={"version": version, "policy": policy_of(Rollout())})

    def step(phase: Phase) -> None:
        state = read_state(store, "arithmetic")
        assert append(
            store, "arithmetic", state, step_event(state, 2.0, RolloutStep(phase=phase, reason="a step", stage=0))
        )

    step(Phase.ROLLING_BACK)  # of the iteration's own candidate
    step(Phase.ABORTED)
    state = read_state(store, "arithmetic")
    event = RolloutEvent(epoch=state.epoch + 1, at=1.0, rollout=opened.rollout, phase=Phase.PROPOSED, proposal=opened)
    assert append(store, "arithmetic", state, event)
    with slot_server(name) as server:
        slot, admit = ServedSlot(digest=CANDIDATE.digest, url=server.url, name=name), admission(settings, log.append)
        step(Phase.GATED)
        assert (admit(slot), server.asked) == ("", [])
        step(Phase.SHIFTING)
        assert (admit(slot), len(server.asked)) == ("", 32)
        assert admit(slot.model_copy(update={"digest": "d" * 64})) == "" and len(server.asked) == 32
        server.answer = lambda server, body: response(b"loading", 503)
        assert re.search("warm-up: 32 of 32 recent prompts got no answer", admit(slot))
    assert "does not list its models" in admit(slot), "it is away"
