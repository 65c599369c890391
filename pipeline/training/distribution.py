"""accelerate's settings for DDP, FSDP2 and ZeRO, and a check of what it runs. They are environment variables: only then
accelerate opens the gloo group that FSDP2 needs besides NCCL to offload and to gather."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from pipeline.recipe import Distribution
from pipeline.training.plan import TrainingPlan

if TYPE_CHECKING:
    from accelerate import Accelerator


def environment(distribution: Distribution, *, on_gpu: bool, second_model: bool = False) -> dict[str, str]:
    """What accelerate reads for this strategy: to be set before TRL's config is constructed. `second_model`: TRL loads
    the base again, as the reference of a policy without an adapter. Under FSDP2 every rank then loads all weights:
    where only rank 0 does, accelerate hands out the policy's, but not the reference's (TRL 1.16 shards what each
    rank has), and the others train against what lay in memory."""
    variables: dict[str, Any] = {}
    offload = distribution.cpu_offload
    if distribution.strategy == "fsdp2":
        variables = {
            "ACCELERATE_USE_FSDP": True,
            "FSDP_VERSION": 2,
            "FSDP_AUTO_WRAP_POLICY": "TRANSFORMER_BASED_WRAP",  # of no named class: the model's own decoder layers
            "FSDP_RESHARD_AFTER_FORWARD": True,
            "FSDP_OFFLOAD_PARAMS": offload,
            # Weights and the adapter's random start come from rank 0: the others can't differ.
            "FSDP_CPU_RAM_EFFICIENT_LOADING": not second_model,
            "FSDP_STATE_DICT_TYPE": "FULL_STATE_DICT",  # gathered on rank 0, which exports the adapter
            "FSDP_ACTIVATION_CHECKPOINTING": False,  # the trainer's gradient_checkpointing does it
        }
    elif distribution.strategy != "ddp":
        third = distribution.strategy == "zero3"
        variables = {
            "ACCELERATE_USE_DEEPSPEED": True,
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": 3 if third else 2,
            "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu" if offload else "none",
            "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "cpu" if offload and third else "none",
            "ACCELERATE_DEEPSPEED_ZERO3_INIT": third,
            "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": third,  # gathered on rank 0, which exports the adapter
        }
    variables["ACCELERATE_USE_CPU"] = not on_gpu
    if not on_gpu:  # accelerate says cpu:<rank>, where torch can't restore an optimizer's state to
        variables["ACCELERATE_TORCH_DEVICE"] = "cpu"
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in variables.items()}


def trainer_arguments(world_size: int, *, on_gpu: bool) -> dict[str, Any]:
    """What both TRL configs need to know of several processes; the rest is `environment`. Nothing for one process.
    Activation checkpointing stays their `gradient_checkpointing`, one switch for every strategy."""
    if world_size == 1:
        return {}
    return {
        "ddp_find_unused_parameters": False,  # every trained weight takes part in every step
        "ddp_backend": None if on_gpu else "gloo",
    }


def assert_distribution(accelerator: Accelerator, plan: TrainingPlan) -> None:
    """Raise ValueError unless accelerate runs what the plan says. Where it can't (FSDP2 without a GPU, settings that
    came too late) it trains as plain DDP and says nothing."""
    distribution = plan.training.distribution
    offloaded = {"ddp": (), "zero2": ("optimizer",)}.get(distribution.strategy, ("optimizer", "weights"))
    wanted = _words(distribution.strategy, offloaded if distribution.cpu_offload else (), plan.world_size)
    actual = _words(*_running(accelerator), accelerator.num_processes)
    if wanted != actual:
        raise ValueError(
            f"The plan says {wanted}, but accelerate runs {actual} on {accelerator.device.type}. fsdp2, zero2 and "
            f"zero3 need one GPU for each of the {plan.world_size} processes: give them, or set "
            "training.distribution.strategy to ddp and launch the whole job again."
        )


def _words(strategy: str, offloaded: Iterable[str], processes: int) -> str:
    """A strategy; `offloaded`: what lies in the host's memory."""
    where = " and ".join(sorted(offloaded))
    return f"{strategy}{f', {where} offloaded' if where else ''} over {processes} processes"


def _running(accelerator: Accelerator) -> tuple[str, Iterable[str]]:
    from accelerate.utils import DistributedType
    from torch.distributed.fsdp import CPUOffloadPolicy

    kind, state = accelerator.distributed_type, accelerator.state
    if kind == DistributedType.FSDP:
        assert state.fsdp_plugin is not None, "accelerate sets it with this type"
        offloads = isinstance(state.fsdp_plugin.cpu_offload, CPUOffloadPolicy)
        return f"fsdp{state.fsdp_plugin.fsdp_version}", ("optimizer", "weights") if offloads else ()
    if kind == DistributedType.DEEPSPEED:
        plugin = state.deepspeed_plugin
        assert plugin is not None, "accelerate sets it with this type"
        devices = {"optimizer": plugin.offload_optimizer_device, "weights": plugin.offload_param_device}
        return f"zero{plugin.zero_stage}", [what for what, device in devices.items() if device == "cpu"]
    ddp = kind in (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)
    return "ddp" if ddp else str(kind.value), ()
