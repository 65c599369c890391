"""DeepSpeed's own configuration object, built from what accelerate hands it.

DeepSpeed lies beside the environment (`.venv/deepspeed`), not in it: accelerate imports it wherever it finds it.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
DEEPSPEED = ROOT / ".venv" / "deepspeed"
BUILD = """
import json, os
from accelerate import DeepSpeedPlugin
from deepspeed.runtime.config import DeepSpeedConfig
from pipeline.recipe import Distribution
from pipeline.training.distribution import environment

def build(strategy, offload):
    os.environ.update(environment(Distribution(strategy=strategy, cpu_offload=offload), on_gpu=True))
    plugin = DeepSpeedPlugin()
    plugin.set_mixed_precision("bf16")
    batch = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
    plugin.deepspeed_config_process(must_match=False, gradient_clipping=1.0, **batch)
    config = DeepSpeedConfig(plugin.deepspeed_config)
    zero = config.zero_config
    print(json.dumps({
        "strategy": strategy, "offload": offload,
        "enabled": config.zero_enabled, "stage": zero.stage, "bf16": config.bfloat16_config.enabled,
        "optimizer": str(zero.offload_optimizer.device), "weights": str(zero.offload_param.device),
        "gathers": zero.gather_16bit_weights_on_model_save, "init": plugin.zero3_init_flag,
    }), flush=True)

for strategy in ("zero2", "zero3"):
    for offload in (False, True):
        child = os.fork()  # the environment and the plugins are of a process
        if child == 0:
            build(strategy, offload)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, (strategy, offload)
"""


@pytest.fixture(scope="module")
def built() -> list[dict[str, Any]]:
    """What DeepSpeed made of each strategy, with offload and without."""
    if not DEEPSPEED.is_dir():
        pytest.skip(f"no DeepSpeed in {DEEPSPEED} (make test installs it there)")
    path = os.pathsep.join([str(ROOT), str(DEEPSPEED)])
    command, environment = [sys.executable, "-c", BUILD], {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"strategy"')]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
@pytest.mark.parametrize("offload", [False, True])
def test_deepspeed_accepts_what_accelerate_hands_it(strategy: str, offload: bool, built: list[dict[str, Any]]) -> None:
    (found,) = [each for each in built if (each["strategy"], each["offload"]) == (strategy, offload)]
    third, host = strategy == "zero3", "cpu" if offload else "none"
    assert found == {
        "strategy": strategy,
        "offload": offload,
        "enabled": True,
        "stage": 3 if third else 2,
        "bf16": True,
        "optimizer": host,
        "weights": host if third else "none",
        "gathers": third,
        "init": third,
    }
