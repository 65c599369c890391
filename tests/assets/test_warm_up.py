"""What a slot is asked before its first user: the newest prompts of the candidate's iteration, as labelled."""

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from assets.records import LABELS
from assets.traffic import warmed
from pipeline.core.storage import ModelRef
from pipeline.serving.endpoint import served_name
from tests.iterations import Iterations
from tests.loop import deployment
from tests.pipeline.rollout.gateway.slot_server import slot_server

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
        assert log == [f"warm-up: 32 recent prompts were asked at {server.url}, and no user got the answers"]
        assert warmed(settings, (server.url,), CANDIDATE, "gone", log.append) == ""
        assert len(server.asked) == 32 and log[-1].startswith("warm-up: none, ")
    assert warmed(settings, (), CANDIDATE, iteration, log.append) == "" and "router alone" in log[-1]
