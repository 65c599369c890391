"""What accelerate, its launcher and DeepSpeed make of the settings, and in which precision weights are trained."""

import itertools
import math
import os
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.utils import DistributedType
from accelerate.utils.fsdp_utils import fsdp2_prepare_auto_wrap_policy
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

from pipeline.demo import MODEL_DIR
from pipeline.recipe import Distribution, Training
from pipeline.training.callback import finite
from pipeline.training.distribution import assert_distribution, environment
from pipeline.training.methods.builder import keep_adapter_precision
from pipeline.training.plan import TrainingPlan

pytestmark = pytest.mark.slow


DDP = Distribution()
SHARDED = [
    Distribution(strategy=strategy, cpu_offload=offload)
    for strategy, offload in itertools.product(("fsdp2", "zero2"), (False, True))
]


def plan(distribution: Distribution, nodes: int = 1, processes: int = 2) -> TrainingPlan:
    """As much of a plan as a distribution looks at."""
    training = Training(distribution=distribution)
    return TrainingPlan.model_construct(iteration="it-1", nodes=nodes, processes=processes, training=training)


def described(distribution: Distribution) -> str:
    return f"{distribution.strategy}{'-offload' * distribution.cpu_offload}"


@pytest.fixture
def exported(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The environment with nothing of accelerate's in it, to be filled."""
    for name in [*os.environ]:
        if name.startswith(("ACCELERATE_", "FSDP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("FSDP_CPU_RAM_EFFICIENT_LOADING", "false")  # a plugin sets it; it goes again

    def export(distribution: Distribution) -> None:
        for name, value in environment(distribution, on_gpu=True).items():
            monkeypatch.setenv(name, value)

    return export


def accelerator(world_size: int = 2) -> Any:
    """An Accelerator as it would be with GPUs: the plugins are real and read the environment."""
    plugins: dict[str, Any] = {}
    kind = DistributedType.MULTI_GPU
    if os.environ.get("ACCELERATE_USE_FSDP"):
        plugins, kind = {"fsdp_plugin": FullyShardedDataParallelPlugin()}, DistributedType.FSDP
    if os.environ.get("ACCELERATE_USE_DEEPSPEED"):
        plugins, kind = {"deepspeed_plugin": DeepSpeedPlugin()}, DistributedType.DEEPSPEED
    state, device = SimpleNamespace(**plugins), SimpleNamespace(type="cuda")
    return SimpleNamespace(distributed_type=kind, state=state, num_processes=world_size, device=device)


@pytest.mark.parametrize("distribution", [DDP, *SHARDED], ids=described)
def test_accelerate_state_is_accepted_for_its_plan_alone(distribution: Distribution, exported: Any) -> None:
    exported(distribution)
    assert_distribution(accelerator(), plan(distribution))
    for other in (d for d in (DDP, *SHARDED) if d != distribution):
        with pytest.raises(ValueError, match="but accelerate runs"):
            assert_distribution(accelerator(), plan(other))
    with pytest.raises(ValueError, match=r"over 4 processes.* but accelerate runs .* over 2 processes"):
        assert_distribution(accelerator(), plan(distribution, processes=4))


def test_fsdp_gathers_full_weights_and_wraps_decoder_layers(exported: Any) -> None:
    from peft import LoraConfig, get_peft_model
    from torch.distributed.fsdp import StateDictType
    from transformers import AutoModelForCausalLM

    exported(Distribution(strategy="fsdp2"))
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.state_dict_type == StateDictType.FULL_STATE_DICT
    base = AutoModelForCausalLM.from_pretrained(MODEL_DIR)
    layers = list(base.model.layers)
    model = get_peft_model(base, LoraConfig(target_modules="all-linear", task_type="CAUSAL_LM"))
    plugin.set_auto_wrap_policy(model)
    policy = fsdp2_prepare_auto_wrap_policy(plugin, model)
    assert policy is not None
    assert [module for module in model.modules() if policy(module)] == layers


def test_adapters_of_a_quantised_base_are_trained_in_fp32() -> None:
    base = AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.bfloat16)
    config = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(base, config, autocast_adapter_dtype=False)  # as TRL leaves those of a quantised base

    def precisions(trained: bool) -> set[torch.dtype]:
        return {weight.dtype for weight in model.parameters() if weight.requires_grad == trained}

    assert precisions(trained=True) == {torch.bfloat16}
    keep_adapter_precision(model)
    assert (precisions(trained=True), precisions(trained=False)) == ({torch.float32}, {torch.bfloat16})


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
def test_a_weight_that_is_no_number_is_seen(value: float) -> None:
    model: Any = SimpleNamespace(parameters=lambda: [torch.nn.Parameter(torch.tensor([0.5, value]))])
    assert finite(model) is math.isfinite(value)
