"""A training whose data root is moved between two attempts ends with the bits of one that stayed."""

import shutil
from pathlib import Path

import pytest

from pipeline.core.storage import digest_dir
from tests.fork_server import ForkServer, adapter_of, result_of
from tests.pipeline.training.plans import folder, make_plan

pytestmark = [pytest.mark.slow, pytest.mark.variant]


def test_a_moved_training_resumes_with_the_same_bits(tmp_path: Path, fork_server: ForkServer) -> None:
    store, made = make_plan(tmp_path / "old")
    plan = folder(store, made) / "plan.json"
    assert fork_server.attempt(plan).code == 0
    whole, bits = result_of(plan), adapter_of(plan)
    assert [p for p in plan.parent.rglob("*") if p.is_file() and str(tmp_path).encode() in p.read_bytes()] == []
    left = tmp_path / "new" / plan.relative_to(tmp_path / "old").parent  # as a kill after step 2 would have
    (tmp_path / "old").rename(tmp_path / "new")
    for path in [*left.glob("checkpoints/step-*"), left / "adapter", left / "model"]:
        if path.name != "step-000002":
            shutil.rmtree(path)
    (left / "result.json").unlink()
    assert fork_server.attempt(left / "plan.json").code == 0, fork_server.said()
    again = result_of(left / "plan.json")
    assert again.resumed_from == (2,)
    assert adapter_of(left / "plan.json") == bits
    assert again.checkpoint.model.digest == whole.checkpoint.model.digest
    assert again.checkpoint.adapter.digest == whole.checkpoint.adapter.digest
    assert Path(again.checkpoint.model.uri).is_relative_to(tmp_path / "new")
    assert digest_dir(Path(again.checkpoint.model.uri)) == again.checkpoint.model.digest
    assert not (tmp_path / "old").exists()
