"""Several training processes. Those of one node are started together, ended together, and started again together after
a crash; a gang of several nodes is started again by whoever placed it. accelerate's settings for DDP, FSDP2 and ZeRO
are environment variables: only then it opens the gloo group that FSDP2 needs besides NCCL to offload and to gather."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.recipe import Distribution
from pipeline.training.journal import emit
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import BLOCKED, NEVER_RETRY, PREEMPTED, InvalidPlan

if TYPE_CHECKING:
    from accelerate import Accelerator

WORKER = (sys.executable, "-m", "pipeline.training")


def needs_gang(plan: TrainingPlan) -> bool:
    """Whether the plan's processes want ranks: several do, and one that runs FSDP2 or DeepSpeed."""
    return plan.world_size > 1 or plan.training.distribution.strategy != "ddp"


def run_gang(
    plan_path: Path,
    plan: TrainingPlan,
    *,
    max_restarts: int,
    node_rank: int = 0,
    master: str = "",
    command: Sequence[str] = WORKER,
) -> int:
    """Run `command` PLAN in `plan.processes` processes with ranks, to the end; returns the node's exit code.

    The code: 0 all are done; 143, 64 and 65 as those of `result.py`; else that of the first that failed (128 + n for
    signal n). `master`: host:port of node 0, when the plan has several nodes. `max_restarts`: after crashes, of all
    processes of a single node at once. SIGTERM and SIGINT go to every process, which has `plan.training.grace_s` until
    SIGKILL. Call it in the main thread. Raises InvalidPlan for a node that is not the plan's, or no master.
    """
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    if node_rank not in range(plan.nodes):
        raise InvalidPlan(f"Node rank {node_rank} is none of the plan's {plan.nodes} nodes: number them from 0.")
    if plan.nodes > 1 and not master:
        raise InvalidPlan(f"The plan has {plan.nodes} nodes and no master: give the host:port of node 0.")
    alone = plan.nodes == 1
    config = LaunchConfig(
        min_nodes=plan.nodes,
        max_nodes=plan.nodes,
        nproc_per_node=plan.processes,
        run_id=plan.iteration,
        role="trainer",
        rdzv_backend="c10d" if alone else "static",
        rdzv_endpoint="localhost:0" if alone else master,
        rdzv_configs={} if alone else {"rank": node_rank},
        local_addr="localhost" if alone else None,
        max_restarts=0,  # torch's own restarts count a pre-emption as a crash
        logs_specs=DefaultLogsSpecs(log_dir=os.devnull),
        signals_to_handle="SIGTERM,SIGINT",
        shutdown_timeout=max(1, int(plan.training.grace_s)),
    )
    os.environ["OMP_NUM_THREADS"] = str(plan.training.threads)  # torch hands its own environment on
    if alone and sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # or gloo listens on whatever the host's name resolves to
    restarts = max_restarts if alone else 0
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        while True:
            try:
                elastic_launch(config, command[0])(*command[1:], str(plan_path))
                return 0
            except ChildFailedError as error:
                codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
            code = exit_code(codes.values())
            ended = ", ".join(f"rank {rank} with {status}" for rank, status in codes.items())
            if code in (PREEMPTED, NEVER_RETRY, BLOCKED) or not restarts:
                emit(f"ended: {ended}")
                return code
            emit(f"{ended}: starting all again, {restarts} restarts left")
            restarts -= 1
    except SignalException as error:
        return 128 + error.sigval
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


def exit_code(codes: Iterable[int]) -> int:
    """The node's exit code from those of its failed ranks, first failure first; negative means a signal, as in Popen.
    Those behind the first were mostly stopped because of it: with SIGTERM, so that their 143 is not a pre-emption."""
    exit_codes = [128 - code if code < 0 else code for code in codes]
    return next((code for code in (BLOCKED, NEVER_RETRY) if code in exit_codes), exit_codes[0])


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
        variables = {
            "ACCELERATE_USE_DEEPSPEED": True,
            "ACCELERATE_DEEPSPEED_ZERO_STAGE": 2,
            "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "cpu" if offload else "none",
            "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
        }
    variables["ACCELERATE_USE_CPU"] = not on_gpu
    if not on_gpu:  # accelerate says cpu:<rank>, where torch can't restore an optimizer's state to
        variables["ACCELERATE_TORCH_DEVICE"] = "cpu"
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in variables.items()}


def assert_distribution(accelerator: Accelerator, plan: TrainingPlan) -> None:
    """Raise ValueError unless accelerate runs what the plan says. Where it can't (FSDP2 without a GPU, settings that
    came too late) it trains as plain DDP and says nothing."""
    from accelerate.utils import DistributedType
    from torch.distributed.fsdp import CPUOffloadPolicy

    state, distribution = accelerator.state, plan.training.distribution
    running, offloads = "ddp", False
    if accelerator.distributed_type == DistributedType.FSDP and (fsdp := state.fsdp_plugin) is not None:
        running, offloads = f"fsdp{fsdp.fsdp_version}", isinstance(fsdp.cpu_offload, CPUOffloadPolicy)
    elif (zero := getattr(state, "deepspeed_plugin", None)) is not None:
        running, offloads = f"zero{zero.zero_stage}", zero.offload_optimizer_device == "cpu"
    wanted = distribution.strategy, distribution.cpu_offload, plan.world_size
    if wanted != (running, offloads, accelerator.num_processes):
        offloaded = ("", ", offloaded")
        raise ValueError(
            f"The plan says {wanted[0]}{offloaded[wanted[1]]} over {wanted[2]} processes, but accelerate runs {running}"
            f"{offloaded[offloads]} over {accelerator.num_processes} processes on {accelerator.device.type}. fsdp2 "
            f"and zero2 need one GPU for each of the {plan.world_size} processes: give them, or set "
            "training.distribution.strategy to ddp and launch the whole job again."
        )
