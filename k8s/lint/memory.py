"""Rules on a recipe's models against the memory of the pods that load them, where the model's files are at hand.

Lower bounds: activations, the cache of attention and whatever a trainer keeps beside weights, gradients and moments
come on top. So what is reported here surely does not fit, and what is not may still not.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from k8s.evaluation import machine
from k8s.gang import Gang
from k8s.lint.rules import Hits, Rule, Violation
from k8s.lint.tree import quantity
from k8s.render.pod import requests, shm_mib
from pipeline.recipe import Recipe
from pipeline.selection.cost import parameters
from pipeline.serving.memory import too_large

NF4_BYTES = 0.5
ADAM = 3
"""Beside each trained weight: its gradient and two moments."""


def evaluation_over_memory(recipe: Recipe, gang: Gang) -> Hits:
    """The pod of the evaluation loads the whole model: it is killed for its memory, or its engine refuses to start,
    once the training has been paid for."""
    if gang.task != "evaluation":
        return
    memory = machine(recipe.compute)._replace(memory=round(_asked(gang)))
    if problem := too_large(recipe.evaluation.serving, recipe.base_model.uri, memory):
        yield "recipe compute.evaluation", problem


def trainer_over_memory(recipe: Recipe, gang: Gang) -> Hits:
    """Weights, and for each that is trained its gradient and two moments, are in memory before the first step: out of
    memory, and every attempt the same."""
    if gang.task != "training" or (count := weights(recipe)) is None:
        return
    on_device = gang.instance.gpus > 0
    needed = count * bytes_each(recipe, on_device)
    room, whose = (gang.instance.gpu_memory_gb * 1e9, "a device") if on_device else (_room(gang), "a process")
    if needed > room:
        what = f"at least {needed / 1e9:.1f} GB for {count / 1e9:.2f} G weights"
        yield "recipe training", f"{what}, {whose} has {room / 1e9:.1f} GB"


def offload_over_memory(recipe: Recipe, gang: Gang) -> Hits:
    """What is offloaded from the devices is in the memory that the pod asks for, beside /dev/shm: the kernel kills a
    process of the gang for it, and every attempt ends the same."""
    if gang.task != "training" or not gang.instance.gpus or (count := weights(recipe)) is None:
        return
    needed, room = count * offloaded_each(recipe) * gang.processes, _asked(gang)
    if needed > room:
        what = f"at least {needed / 1e9:.1f} GB of {gang.processes} processes"
        yield "recipe training.distribution.cpu_offload", f"{what}, a pod asks for {room / 1e9:.1f} GB beside /dev/shm"


def offloaded_each(recipe: Recipe) -> float:
    """Bytes in the host's memory of one process for each weight of the model, at least: its share of what `bytes_each`
    leaves out of the device, in bf16."""
    training, shares = recipe.training, recipe.compute.devices
    if not training.distribution.cpu_offload or training.engine == "nemo_rl":  # NeMo RL has settings of its own
        return 0.0
    held = 2 if training.distribution.strategy in ("fsdp2", "zero3") else 0
    state = 0 if training.lora is not None else 2 * ADAM
    return (held + state) / shares


def bytes_each(recipe: Recipe, on_device: bool) -> float:
    """Of one process for each weight of the model, at least: bf16 on a device, float32 on CPU, less what is sharded,
    quantised or offloaded. NeMo RL shards by itself: all is taken as sharded."""
    training, shares = recipe.training, recipe.compute.devices
    strategy, offload = training.distribution.strategy, training.distribution.cpu_offload
    if training.engine == "nemo_rl":
        strategy = "zero3"
    each = 2 if on_device else 4
    held = NF4_BYTES if training.lora is not None and training.lora.quantise == "nf4" else each
    if strategy in ("fsdp2", "zero3"):
        held = 0 if offload else held / shares
    state = 0 if training.lora is not None or offload else ADAM * each
    return held + (state if strategy == "ddp" else state / shares)


def weights(recipe: Recipe) -> int | None:
    """Of the base model; None where its files are not here."""
    if not Path(recipe.base_model.uri).is_dir():
        return None
    try:
        return parameters(recipe.base_model.uri)
    except ValueError:  # for the preflight to name
        return None


def _room(gang: Gang) -> float:
    """Bytes of the pod's memory for each of its processes."""
    return _asked(gang) / gang.processes


def _asked(gang: Gang) -> float:
    """Bytes of memory that the pod asks for, which is its limit as well, less /dev/shm, which counts in it."""
    return quantity(requests(gang)["memory"]) - (shm_mib(gang) << 20)


def _rule(fix: str, check: Callable[[Recipe, Gang], Hits]) -> Rule:
    return Rule("error", fix, check)


RECIPE_RULES = {
    rule.id: rule
    for rule in (
        _rule(
            "Choose a larger compute.evaluation.instance_type, more devices with evaluation.serving.tensor_parallel, "
            "or a smaller compute.kubernetes.shm_gb.",
            evaluation_over_memory,
        ),
        _rule(
            "Train an adapter (training.lora), shard (training.distribution.strategy), quantise, or choose a larger "
            "compute.kubernetes.instance_type.",
            trainer_over_memory,
        ),
        _rule(
            "Take more nodes, so that each has a smaller share, train an adapter (training.lora), or choose a larger "
            "compute.kubernetes.instance_type or a smaller shm_gb.",
            offload_over_memory,
        ),
    )
}
"""Over a recipe and one of its gangs, by id."""


def lint_memory(recipe: Recipe, gang: Gang) -> list[Violation]:
    """What of the recipe's models does not fit into the pods of this gang."""
    return [finding for rule in RECIPE_RULES.values() for finding in rule.findings(recipe, gang)]
