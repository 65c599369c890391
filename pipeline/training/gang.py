"""The training processes of one node: started together, ended together, started again together after a crash. A gang of
several nodes is started again by whoever placed it."""

import os
import signal
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from pipeline.training.journal import emit
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import BLOCKED, NEVER_RETRY, PREEMPTED, InvalidPlan

WORKER = (sys.executable, "-m", "pipeline.training")


def needed(plan: TrainingPlan) -> bool:
    """Whether the plan's processes want ranks: several do, and one that runs FSDP2 or DeepSpeed."""
    return plan.world_size > 1 or plan.training.distribution.strategy != "ddp"


def run(
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
    config = _config(plan, node_rank, master)
    os.environ["OMP_NUM_THREADS"] = str(plan.training.threads)  # torch hands its own environment on
    if plan.nodes == 1 and sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"  # or gloo listens on whatever the host's name resolves to
    code, ended, restarts = 0, "", max_restarts if plan.nodes == 1 else 0
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        for attempt in range(restarts + 1):
            try:
                elastic_launch(config, command[0])(*command[1:], str(plan_path))
                return 0
            except ChildFailedError as error:
                codes = {rank: failure.exitcode for rank, failure in error.failures.items()}
                code = exit_code(codes.values())
                ended = ", ".join(f"rank {rank} with {status}" for rank, status in codes.items())
            if code in (PREEMPTED, NEVER_RETRY, BLOCKED) or attempt == restarts:
                break
            emit(f"{ended}: starting all again, {restarts - attempt} restarts left")
    except SignalException as error:
        return 128 + error.sigval
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
    emit(f"ended: {ended}")
    return code


def exit_code(codes: Iterable[int]) -> int:
    """The node's exit code from those of its failed ranks, first failure first; negative means a signal, as in Popen.
    Those behind the first were mostly stopped because of it: with SIGTERM, so that their 143 is not a pre-emption."""
    exit_codes = [128 - code if code < 0 else code for code in codes]
    return next((code for code in (BLOCKED, NEVER_RETRY) if code in exit_codes), exit_codes[0])


def _config(plan: TrainingPlan, node_rank: int, master: str) -> LaunchConfig:
    if node_rank not in range(plan.nodes):
        raise InvalidPlan(f"Node rank {node_rank} is none of the plan's {plan.nodes} nodes: number them from 0.")
    if plan.nodes > 1 and not master:
        raise InvalidPlan(f"The plan has {plan.nodes} nodes and no master: give the host:port of node 0.")
    alone = plan.nodes == 1
    return LaunchConfig(
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
