"""A training that reads its base from the node's cache, killed on the way: the bits of one that reads the volume."""

import json
import signal
from pathlib import Path

import pytest

from pipeline.recipe import Checkpoints
from pipeline.serving.node_cache import CACHE, SIZE
from pipeline.training.weights import CONFIG
from tests.fork_server import ForkServer, adapter_of, result_of
from tests.pipeline.training.plans import folder, make_plan


@pytest.mark.variant
@pytest.mark.slow
def test_bits_are_those_of_the_base_on_the_volume(
    tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    plans, bases = {}, {}
    for name in ("volume", "node"):
        store, plan = make_plan(tmp_path / name, checkpoints=Checkpoints(every_steps=2))
        plans[name], bases[name] = folder(store, plan) / "plan.json", plan.base
    assert fork_server.attempt(plans["volume"]).code == 0, fork_server.said()
    monkeypatch.setenv(CACHE, str(tmp_path / "cache"))
    monkeypatch.setenv(SIZE, "1")
    fork_server.attempt(plans["node"], signal.SIGKILL, at="step 3")
    assert fork_server.attempt(plans["node"]).code == 0, fork_server.said()
    assert (tmp_path / "cache" / bases["node"].digest / "config.json").is_file()
    assert adapter_of(plans["node"]) == adapter_of(plans["volume"])
    ends = [result_of(plans[name]).checkpoint for name in ("volume", "node")]
    assert ends[0].model.digest == ends[1].model.digest
    configs = [json.loads((plans[name].parent / "adapter" / CONFIG).read_text()) for name in ("volume", "node")]
    assert configs[0] == configs[1], "it names no place that other nodes do not have"
