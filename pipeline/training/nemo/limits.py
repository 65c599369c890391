"""What NeMo RL cannot express of a plan: refused with the setting's name, never dropped.

The rule: a setting is rendered (render.py), refused here, or named in `WITHOUT_EFFECT` with the reason. Departures of
what is rendered, by NeMo RL's own definition: dynamic sampling ends the training when groups are still missing after
the last round; leave-one-out scales by the deviation of the other rewards too; the sft term is averaged within each
completion first; its KL and advantages are clamped as its example says.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.recipe import DPO, GRPO
from pipeline.training.plan import TrainingPlan

WITHOUT_EFFECT = {
    "validation.prompts": "the plan's held-out file is cut to it already",
    "validation.seed": "completions are drawn by NeMo RL's engine, with the training's seed",
    "training.threads": "of a training on CPU",
    "training.timeout_s": "the launcher's",
    "training.sentinel": "looks at the rows that come back; its rules on what NeMo RL does not print are silent",
    "training.grace_s": "read when SIGTERM comes: how long a save under way may take",
    "training.engine": "the choice of this engine",
}
"""Settings that change nothing in NeMo RL's configuration, and why that loses nothing."""

LOSSES = {"dapo": True, "grpo": False}
"""Our `loss_type` to NeMo RL's `token_level_loss`."""


def refuse(plan: TrainingPlan) -> None:
    """Raise ValueError that lists every setting NeMo RL cannot express, and what to change."""
    algorithm = plan.algorithm
    problems = [*_shared(plan), *(_grpo(plan, algorithm) if isinstance(algorithm, GRPO) else _dpo(plan, algorithm))]
    if problems:
        raise ValueError(
            "\n".join(["NeMo RL cannot train this plan; change these, or set training.engine trl:", *problems])
        )


def _shared(plan: TrainingPlan) -> Iterator[str]:
    training, lora = plan.training, plan.training.lora
    if lora is not None and lora.quantise != "none":
        yield f"training.lora.quantise {lora.quantise!r}: its LoRA trains on an unquantised base. Set none."
    if lora is not None and lora.target_modules != "all-linear":
        yield f"training.lora.target_modules {lora.target_modules!r}: it knows other patterns. Set all-linear."
    strategy = training.distribution.strategy
    if strategy in ("zero2", "zero3") or (strategy == "ddp" and plan.world_size > 1):
        yield f"training.distribution.strategy {strategy!r}: its DTensor backend shards everything. Set fsdp2."
    if training.checkpoints.interruption_every_s is not None:
        yield "training.checkpoints.interruption_every_s: it saves every so many steps. Unset it, and set every_steps."
    if training.checkpoints.mirror is not None:
        yield "training.checkpoints.mirror: it copies nothing. Unset it, and put data_root on a shared volume."


def _grpo(plan: TrainingPlan, grpo: GRPO) -> Iterator[str]:
    if grpo.num_iterations != 1:
        yield f"training.grpo.num_iterations {grpo.num_iterations}: each batch is used once. Set 1."
    if grpo.loss_type not in LOSSES:
        yield f"training.grpo.loss_type {grpo.loss_type!r}: set one of {', '.join(LOSSES)}."
    if grpo.scale_rewards == "batch":
        yield "training.grpo.scale_rewards 'batch': set group or none."
    if grpo.generation == "transformers":
        yield "training.grpo.generation 'transformers': it draws completions with vLLM. Set vllm_colocate."
    resources = [f"policy.generation.colocated.resources.{name}" for name in ("gpus_per_node", "num_nodes")]
    if grpo.generation == "vllm_server" and not any(key in grpo.trainer_args for key in resources):
        yield f"training.grpo.generation 'vllm_server': give it devices, in trainer_args {' or '.join(resources)}."
    completions = grpo.prompts_per_step * grpo.num_generations // grpo.num_minibatches
    if completions % plan.world_size:
        yield f"training.grpo: {completions} completions an update do not split over {plan.world_size} devices."
    yield from _rewards(plan)
    yield from _validated(plan, grpo)


def _rewards(plan: TrainingPlan) -> Iterator[str]:
    """Its math environment pays 1 for a right answer and 0 for any other."""
    paid = {name: weight for name, weight in plan.rewards.verified.model_dump().items() if weight}
    if set(paid) != {"correct"}:
        others = ", ".join(sorted(set(paid) - {"correct"})) or "nothing"
        yield f"rewards.verified pays {others}: its environment knows right and wrong. Keep correct alone above 0."
    if plan.rewards.verifier.kind != "math":
        yield f"rewards.verifier.kind {plan.rewards.verifier.kind!r}: it checks with math-verify. Set math."


def _validated(plan: TrainingPlan, grpo: GRPO) -> Iterator[str]:
    validation, checkpoints = plan.training.validation, plan.training.checkpoints
    if plan.held_out is None:
        return
    if validation.max_completion_tokens != grpo.max_completion_tokens:
        yield (
            f"training.validation.max_completion_tokens {validation.max_completion_tokens}: it validates as it trains. "
            f"Set {grpo.max_completion_tokens} as in training.grpo."
        )
    if grpo.temperature != 1.0:
        yield f"training.grpo.temperature {grpo.temperature}: held-out answers would be drawn at it too. Set 1.0."
    save, look = batches(checkpoints.every_steps, grpo), batches(validation.every_steps, grpo)
    if save % look:
        yield (
            f"training.checkpoints.every_steps: a checkpoint every {save} batches of generation is not one in every "
            f"{look}, when held-out prompts are asked, and would have no accuracy. Set a multiple."
        )


def _dpo(plan: TrainingPlan, dpo: DPO) -> Iterator[str]:
    if unknown := set(dpo.loss_type) - {"sigmoid", "sft"}:
        yield f"training.dpo.loss_type {', '.join(sorted(unknown))}: set sigmoid, with or without sft."
    elif "sigmoid" not in dpo.loss_type:
        yield "training.dpo.loss_type without sigmoid: that is supervised fine-tuning. Add sigmoid."
    if plan.held_out is not None:
        yield (
            "training.validation.every_steps: it judges DPO by the loss on held-out pairs, and the plan holds prompts "
            "to answer. Set 0."
        )
    if dpo.batch_size % plan.world_size:
        yield f"training.dpo.batch_size {dpo.batch_size} does not split over {plan.world_size} devices: use a multiple."


def batches(steps: int, algorithm: GRPO | DPO) -> int:
    """Our optimizer steps in NeMo RL's: a step of its GRPO is a batch of generation, whatever it is split into."""
    return -(-steps // algorithm.updates_per_batch) if isinstance(algorithm, GRPO) else steps
