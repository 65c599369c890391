"""What NeMo RL cannot express of a plan: refused with the setting's name, never dropped.

The rule: a setting is rendered (render.py, grpo.py, dpo.py), refused here or there, or named in `WITHOUT_EFFECT` with
the reason.
"""

from __future__ import annotations

from collections.abc import Iterator

from pipeline.training.nemo.rendering import rendering
from pipeline.training.plan import TrainingPlan

WITHOUT_EFFECT = {
    "grpo.kl_stop": "of a training on scores, which it is refused",
    "validation.prompts": "the plan's held-out file is cut to it already",
    "validation.seed": "completions are drawn by NeMo RL's engine, with the training's seed",
    "training.threads": "of a training on CPU",
    "training.timeout_s": "the launcher's",
    "training.sentinel": "looks at the rows that come back; its rules on what NeMo RL does not print are silent",
    "training.grace_s": "read when SIGTERM comes: how long a save under way may take",
    "training.engine": "the choice of this engine",
    "training.nemo_rl_release": "compared with the checkout's own",
}
"""Settings that change nothing in NeMo RL's configuration, and why that loses nothing."""


def refuse(plan: TrainingPlan) -> None:
    """Raise ValueError that lists every setting NeMo RL cannot express, and what to change."""
    problems = [*_shared(plan), *rendering(plan).limits()]
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
    if training.validation.scorer is not None:
        yield f"training.validation.scorer {training.validation.scorer!r}: it asks no second scorer. Unset it."
    if plan.answer_kl_stop is not None:
        yield f"training.{plan.trained_by().kind}.kl_stop: it measures no KL of held-out answers. Set null."
    if training.tools is not None:
        yield "training.tools: its math environment has one turn, and replays no recorded results. Set null."
    if training.checkpoints.mirror is not None:
        yield "training.checkpoints.mirror: it copies nothing. Unset it, and put data_root on a shared volume."
