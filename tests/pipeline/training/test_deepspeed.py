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
import json, os, sys
from pipeline.recipe import Distribution
from pipeline.training.distribution import environment

wanted = Distribution(strategy=sys.argv[1], cpu_offload=sys.argv[2] == "True")
os.environ.update(environment(wanted, on_gpu=True))
from accelerate import DeepSpeedPlugin
from deepspeed.runtime.config import DeepSpeedConfig

plugin = DeepSpeedPlugin()
plugin.set_mixed_precision("bf16")
batch = {"train_batch_size": 8, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 2}
plugin.deepspeed_config_process(must_match=False, gradient_clipping=1.0, **batch)
config = DeepSpeedConfig(plugin.deepspeed_config)
zero = config.zero_config
print(json.dumps({
    "enabled": config.zero_enabled, "stage": zero.stage, "bf16": config.bfloat16_config.enabled,
    "optimizer": str(zero.offload_optimizer.device), "weights": str(zero.offload_param.device),
    "gathers": zero.gather_16bit_weights_on_model_save, "init": plugin.zero3_init_flag,
}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["zero2", "zero3"])
@pytest.mark.parametrize("offload", [False, True])
def test_deepspeed_accepts_what_accelerate_hands_it(strategy: str, offload: bool) -> None:
    if not DEEPSPEED.is_dir():
        pytest.skip(f"no DeepSpeed in {DEEPSPEED} (make test installs it there)")
    path = os.pathsep.join([str(ROOT), str(DEEPSPEED)])
    command = [sys.executable, "-c", BUILD, strategy, str(offload)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": path})
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    third, host = strategy == "zero3", "cpu" if offload else "none"
    assert found == {
        "enabled": True,
        "stage": 3 if third else 2,
        "bf16": True,
        "optimizer": host,
        "weights": host if third else "none",
        "gathers": third,
        "init": third,
    }
