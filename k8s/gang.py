"""The gang: everything that a renderer needs to know of one attempt at one training or evaluation, as one record; names
and labels from any text; and the machines that it can be placed on."""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pipeline.core import layout
from pipeline.core.storage import Record
from pipeline.recipe import Compute, Kubernetes, Recipe
from pipeline.recipe.training import TrainingSettings
from pipeline.training.plan import TrainingPlan


class Instance(Record):
    """One instance type. `cpu_m` (millicores) and `memory_mib` are allocatable: what is left beside the system."""

    name: str
    cloud: Literal["aws", "gcp", "any"]
    gpu: str
    """Model of the device, as people call it; empty without."""
    gpus: int
    gpu_memory_gb: int
    cpu_m: int
    memory_mib: int
    efa: int = 0
    """Elastic Fabric Adapters, resource vpc.amazonaws.com/efa."""


def instance(name: str) -> Instance:
    """Raises ValueError naming the known ones."""
    if name not in INSTANCES:
        known = ", ".join(INSTANCES)
        raise ValueError(
            f"Instance type {name!r} is not known. Set compute.kubernetes.instance_type to one of {known}, or add it "
            "to k8s/gang.py with its GPUs and allocatable memory."
        )
    return INSTANCES[name]


_MACHINES = (
    # Name, cloud, device, devices, GB of each, allocatable millicores and MiB, EFA. AWS: 92.5% of the MiB less
    # 355 and 11 a pod; of Google: less 25, 20, 10, 6 and 2% of 4, 4, 8, 112 GiB and the rest.
    ("p5en.48xlarge", "aws", "H200", 8, 141, 191_450, 1_937_332, 16),
    ("p5e.48xlarge", "aws", "H200", 8, 141, 191_450, 1_931_403, 32),
    ("p5.48xlarge", "aws", "H100", 8, 80, 191_450, 1_931_403, 32),
    ("p4de.24xlarge", "aws", "A100", 8, 80, 95_690, 1_082_712, 4),
    ("p4d.24xlarge", "aws", "A100", 8, 40, 95_690, 1_082_712, 4),
    # Their one adapter has no GPUDirect RDMA: gangs of several nodes work, slowly.
    ("g6e.12xlarge", "aws", "L40S", 4, 48, 47_810, 355_262, 1),
    ("g5.12xlarge", "aws", "A10G", 4, 24, 47_810, 173_400, 1),
    ("a4-highgpu-8g", "gcp", "B200", 8, 180, 223_370, 3_701_472, 0),
    ("a3-ultragpu-8g", "gcp", "H200", 8, 141, 223_370, 2_751_918, 0),
    ("a3-megagpu-8g", "gcp", "H100", 8, 80, 207_410, 1_742_549, 0),
    # Any node that has this much to spare, among other people's pods: for small models without devices.
    ("cpu", "any", "", 0, 0, 2_000, 4_096, 0),
)  # fmt: skip
INSTANCES = {row[0]: Instance.model_validate(dict(zip(Instance.model_fields, row, strict=True))) for row in _MACHINES}


class Gang(Record):
    """`nodes` pods, each on a node of its own with `processes` training processes, which live and die together. An
    evaluation is a gang of one pod."""

    task: Literal["training", "evaluation"] = "training"
    name: str
    """Of the object and of its headless Service: a DNS label of at most 40 characters, the same for the same plan and
    attempt."""
    iteration: str
    plan_digest: str
    """sha256 of the training or the evaluation, hexadecimal."""
    plan_path: str
    """Of its plan, the same for Dagster's step and in the pods."""
    attempt: int
    """From 1; a higher one has the right to the checkpoint directory."""
    engine: str
    """trl or nemo_rl."""
    nodes: int
    processes: int
    """On each node; as many GPUs, unless the instance has none. Of an evaluation the GPUs alone."""
    grace_s: int
    """From SIGTERM to SIGKILL."""
    timeout_s: int
    """Of running, summed by the launcher over the gang's restarts, within one launch."""
    instance: Instance
    settings: Kubernetes
    secret: str = ""
    """Secret with the keys of what is asked over the network; empty: none."""


EVALUATION_GRACE_S = 30
"""An evaluation that is to end has nothing to save: its answers are in the journal as they come."""
NO_DIGEST = "0" * 64


def gang_of(
    plan: TrainingPlan,
    plan_path: Path,
    settings: Kubernetes,
    attempt: int = 1,
    addresses: Mapping[str, str] | None = None,
) -> Gang:
    """The gang that trains this plan. `addresses`: variables of its pods, where it asks a judge; what the recipe's
    environment has goes before them.

    Raises ValueError for an instance type that is not known."""
    digest, asks = plan.digest(), plan.scorers is not None and plan.scorers.ask_judge
    if asks:
        settings = settings.model_copy(update={"env": {**(addresses or {}), **settings.env}})
    return Gang(
        **_of_training(plan.training, settings),
        name=object_name("train", plan.iteration, digest[:8], str(attempt)),
        iteration=plan.iteration,
        plan_digest=digest,
        plan_path=str(plan_path),
        attempt=attempt,
        nodes=plan.nodes,
        processes=plan.processes,
        secret=(settings.secret or "") if asks else "",
    )


def evaluation_gang(
    iteration: str,
    digest: str,
    plan_path: Path,
    compute: Compute,
    attempt: int = 1,
    addresses: Mapping[str, str] | None = None,
) -> Gang:
    """The gang of one pod that answers an evaluation's questions, as `compute.evaluation` has it.

    `digest`: of the evaluation. `addresses`: environment that says where judge and servers listen; what the recipe has
    goes before. Raises ValueError for a recipe without such a pod and an instance type that is not known.
    """
    pod, training = compute.evaluation, compute.kubernetes
    if pod is None or training is None:
        raise ValueError("The recipe evaluates on the machine of its Dagster step: add compute.evaluation.")
    settings = training.model_copy(
        update={
            "backend": "jobset" if training.backend == "rayjob" else training.backend,
            "image": pod.image or training.image,
            "instance_type": pod.instance_type or training.instance_type,
            "env": {**(addresses or {}), **training.env, **pod.env},
        }
    )
    return Gang(
        task="evaluation",
        name=object_name("eval", iteration, digest[:8], str(attempt)),
        iteration=iteration,
        plan_digest=digest,
        plan_path=str(plan_path),
        attempt=attempt,
        engine="trl",
        nodes=1,
        processes=pod.devices,
        grace_s=EVALUATION_GRACE_S,
        timeout_s=round(pod.timeout_s),
        instance=instance(settings.instance_type),
        settings=settings,
        secret=pod.secret or "",
    )


def example_gangs(recipe: Recipe) -> list[Gang]:
    """The gang of an example iteration's training, and the one of its evaluation where the recipe has a pod for it: for
    the lint and for people. Raises ValueError as `example` does."""
    gangs = [example(recipe.name, recipe.data_root, recipe.compute, recipe.training)]
    if recipe.compute.evaluation is not None:
        path = Path(recipe.data_root, layout.iteration("example", layout.EVAL_PLAN))
        gangs.append(evaluation_gang("example", NO_DIGEST, path, recipe.compute))
    return gangs


def example(name: str, data_root: str, compute: Compute, training: TrainingSettings) -> Gang:
    """The gang that a recipe of that name would get for some plan.

    Raises ValueError for a recipe that trains without a cluster, and an instance type that is not known.
    """
    if compute.kubernetes is None:
        raise ValueError(
            f"Recipe {name} trains on the machine of its Dagster step. Add a section compute.kubernetes, as "
            "jobs/recipes/spot_h200_grpo.yaml has it."
        )
    return Gang(
        **_of_training(training, compute.kubernetes),
        name=object_name("train", name, "1"),
        iteration="example",
        plan_digest=NO_DIGEST,
        plan_path=f"{data_root}/iterations/example/training/plan.json",
        attempt=1,
        nodes=compute.nodes,
        processes=compute.processes,
    )


def _of_training(training: TrainingSettings, settings: Kubernetes) -> dict[str, Any]:
    return {
        "engine": training.engine,
        "grace_s": round(training.grace_s),
        "timeout_s": round(training.timeout_s),
        "instance": instance(settings.instance_type),
        "settings": settings,
    }


LABEL = 63
"""Characters of a DNS label and of a label's value (RFC 1123)."""
NAME = 40
"""Of a gang: its pods add `-trainer-0-NNN-xxxxx` and must stay within LABEL."""


def object_name(*parts: str, limit: int = NAME) -> str:
    """The parts joined by dashes as a DNS label, at most `limit` long.

    What had to change (a character, the length) is made up for by a digest: different texts get different names, but
    for one that already looks like another's. Raises ValueError when nothing is given.
    """
    given = "-".join(parts)
    if not given.strip("-"):
        raise ValueError("A name of nothing was asked for: give at least one part that is not empty.")
    name = re.sub(r"-+", "-", re.sub(r"[^a-z0-9]+", "-", given.lower())).strip("-")
    if name == given and name[0].isalpha() and len(name) <= limit:
        return name
    digest = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]
    name = name if name[:1].isalpha() else f"x-{name}".rstrip("-")
    return f"{name[: limit - 9].rstrip('-')}-{digest}"


def label_value(text: str) -> str:
    """`text` as the value of a label: itself where it may stand, else shortened, with a digest."""
    if re.fullmatch(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", text):
        return text
    digest = hashlib.sha256(text.encode()).hexdigest()[:8]
    kept = re.sub(r"[^A-Za-z0-9._-]+", "-", text)[: LABEL - 9].strip("-_.")
    return f"{kept}-{digest}" if kept else digest
