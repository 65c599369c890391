"""The gang: everything that a renderer needs to know of one attempt at one training, and nothing else.

Owns how a plan and the recipe's `compute.kubernetes` become one record; the renderers are functions of that record.
"""

from __future__ import annotations

from pathlib import Path

from k8s.instances import Instance, instance
from k8s.names import object_name
from pipeline.recipe import Kubernetes
from pipeline.storage import Record
from pipeline.training.plan import TrainingPlan


class Gang(Record):
    """`nodes` pods, each on a node of its own with `processes` training processes, which live and die together."""

    name: str
    """Of the object and of its headless Service: a DNS label of at most 40 characters, the same for the same plan and
    attempt."""
    iteration: str
    plan_digest: str
    """sha256 of the training, hexadecimal."""
    plan_path: str
    """Of plan.json, the same for Dagster's step and in the pods."""
    attempt: int
    """From 1; a higher one has the right to the checkpoint directory."""
    engine: str
    """trl or nemo_rl."""
    nodes: int
    processes: int
    """On each node; as many GPUs, unless the instance has none."""
    grace_s: int
    """From SIGTERM to SIGKILL."""
    timeout_s: int
    """Of running, summed by the launcher over the gang's restarts, within one launch."""
    instance: Instance
    settings: Kubernetes
    pipes: dict[str, str] = {}  # noqa: RUF012 (a pydantic field: copied for each instance)
    """Environment that opens a Dagster Pipes session in the first pod; empty: none."""


def gang_of(
    plan: TrainingPlan, plan_path: Path, settings: Kubernetes, attempt: int = 1, pipes: dict[str, str] | None = None
) -> Gang:
    """The gang that trains this plan. Raises ValueError for an instance type that is not known."""
    digest = plan.digest()
    return Gang(
        name=object_name("train", plan.iteration, digest[:8], str(attempt)),
        iteration=plan.iteration,
        plan_digest=digest,
        plan_path=str(plan_path),
        attempt=attempt,
        engine=plan.training.engine,
        nodes=plan.nodes,
        processes=plan.processes,
        grace_s=round(plan.training.grace_s),
        timeout_s=round(plan.training.timeout_s),
        instance=instance(settings.instance_type),
        settings=settings,
        pipes=pipes or {},
    )


def example(name: str, data_root: str, nodes: int, processes: int, engine: str, grace_s: float, timeout_s: float,
            settings: Kubernetes) -> Gang:  # fmt: skip
    """The gang that a recipe of that name would get for some plan: for the lint and for people."""
    digest = "0" * 64
    return Gang(
        name=object_name("train", name, "1"),
        iteration="example",
        plan_digest=digest,
        plan_path=f"{data_root}/iterations/example/training/plan.json",
        attempt=1,
        engine=engine,
        nodes=nodes,
        processes=processes,
        grace_s=round(grace_s),
        timeout_s=round(timeout_s),
        instance=instance(settings.instance_type),
        settings=settings,
    )
