"""What the governed table says of the rows behind prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from pipeline.selection.pairing import read_labels
from pipeline.selection.samples.governed import governed_rows, metadata_of
from tests.pipeline.rewards.functions import write_function
from tests.pipeline.selection.samples.test_stage import REWARDS, World

ONE = """
    def reward(prompt, completion, reference, metadata):
        return 1
"""


def test_metadata_is_found_by_trace_and_prompt(tmp_path: Path) -> None:
    world = World(tmp_path, metadata='{"tier": "gold"}')
    rewards = REWARDS.model_copy(update={"custom": write_function(tmp_path, ONE)})
    work = replace(world.work, recipe=world.work.recipe.model_copy(update={"rewards": rewards}))
    rows = read_labels(world.labels.dataset)
    metadata = metadata_of(work, {row.trace_id for row in rows})
    assert metadata.keys() == {(row.trace_id, row.prompt) for row in rows}
    assert {str(json.loads(text)) for text in metadata.values()} == {"{'tier': 'gold'}"}
    some = {row.trace_id for row in rows[:2]}
    assert {row.trace_id for row in governed_rows(work, some)} == some
