"""What a training is: its plan's digest changes with whatever decides a bit, and with nothing else."""

from pathlib import Path
from typing import Any

import pytest

from pipeline.training.plan import TrainingPlan

from .plans import make_plan

Update = dict[str, Any]


def changed(plan: TrainingPlan, section: str, update: Update) -> TrainingPlan:
    """The plan with some fields of a section (`training.lora` is one below) replaced."""
    outer, _, inner = section.partition(".")
    whole = getattr(plan, outer)
    if inner:
        update = {inner: getattr(whole, inner).model_copy(update=update)}
    return plan.model_copy(update={outer: whole.model_copy(update=update)})


@pytest.mark.parametrize(
    ("section", "update"),
    [
        ("training", {"timeout_s": 9.0}),
        ("training", {"grace_s": 9.0}),
        ("training.checkpoints", {"every_steps": 3}),
        ("training.sentinel", {"kl_stop": 9.0}),
        ("training.validation", {"every_steps": 3}),
        ("rewards.verifier", {"workers": 9}),
    ],
)
def test_what_only_runs_or_watches_a_training_is_no_part_of_it(section: str, update: Update, tmp_path: Path) -> None:
    _, plan = make_plan(tmp_path, "grpo")
    assert changed(plan, section, update) != plan
    assert changed(plan, section, update).digest() == plan.digest()


@pytest.mark.parametrize(
    ("section", "update"),
    [
        ("training", {"seed": 99}),
        ("training", {"threads": 2}),
        ("training", {"lora": None}),
        ("method", {"learning_rate": 0.5}),
        ("method", {"steps": 60}),
        ("training.distribution", {"strategy": "fsdp2"}),
        ("rewards.verifier", {"timeout_s": 99.0}),
        ("rewards.verified", {"correct": 0.123}),
    ],
)
def test_whatever_decides_a_bit_is_part_of_it(section: str, update: Update, tmp_path: Path) -> None:
    _, plan = make_plan(tmp_path, "grpo")
    assert changed(plan, section, update).digest() != plan.digest()
