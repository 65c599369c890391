"""An evaluation as a task on a cluster: one pod with `python -m evals run PLAN`, retried as a training is.

Knows of the evaluation where its plan lies, by what digest it goes and when its report is there, and nothing of what is
in them. What was answered before a pod went is in the journal, so a retry asks none of it again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from k8s.attempts import GangAttempts
from k8s.gang import Gang, evaluation_gang
from k8s.task import Task
from pipeline.core import layout
from pipeline.core.storage import Store
from pipeline.recipe import Compute
from pipeline.serving.memory import Machine

R = TypeVar("R")

ADVICE = {
    "out_of_memory": "Choose a larger compute.evaluation.instance_type, or lower shm_gb.",
    "image": "Push it, or correct compute.evaluation.image, and see that the nodes may pull it.",
    "queued": "Free quota of the queue, raise the ClusterQueue's, or ask for less (compute.evaluation.devices).",
    "deleted": "Somebody deleted it. Run it again: what was answered is not asked again.",
    "timed_out": "Raise compute.evaluation.timeout_s and run it again: what was answered is not asked again.",
    "crashed": "Run it again: what was answered is not asked again.",
    "stuck": "See why its pods go before they answer (kubectl get events: a full disk evicts too).",
}


class EvaluationRefused(ValueError):
    """The cluster will never run this evaluation as it is; the message says what to change."""


class EvaluationJob(NamedTuple):
    """An evaluation whose plan is published."""

    iteration: str
    digest: str
    """sha256 of what decides its evidence, hexadecimal."""


def evaluation_task(
    store: Store,
    job: EvaluationJob,
    compute: Compute,
    result: Callable[[], R | None],
    addresses: Mapping[str, str] | None = None,
) -> Task[R]:
    """The task of one evaluation. `result` reads its report; `addresses` as in `evaluation_gang`."""
    plan_path = store.path(layout.iteration(job.iteration, layout.EVAL_PLAN))

    def gang(attempt: int) -> Gang:
        return evaluation_gang(job.iteration, job.digest, plan_path, compute, attempt, addresses)

    def left() -> set[str]:
        """The journals of answers and judgements, as far as they have come."""
        journals = store.path(layout.EVALUATION).rglob("*.jsonl")
        return {f"{path}:{path.stat().st_size}" for path in journals}

    return Task(
        gang=gang,
        attempts=GangAttempts(store, job.iteration, layout.EVAL_ATTEMPTS),
        result=result,
        result_path=store.path(layout.iteration(job.iteration, layout.EVAL_REPORT)),
        left=left,
        refusal=EvaluationRefused,
        advice=ADVICE,
    )


def machine(compute: Compute) -> Machine:
    """What the evaluation's pod has: bytes of its memory and of each of its GPUs. Raises as `evaluation_gang` does."""
    gang = evaluation_gang("example", "0" * 64, Store("/").path("plan"), compute)
    devices = gang.processes if gang.instance.gpus else 0
    return Machine(gang.instance.memory_mib << 20, (gang.instance.gpu_memory_gb * 10**9,) * devices)
