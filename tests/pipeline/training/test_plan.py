"""What a plan is: its digest changes with whatever decides a bit and with nothing else; limits that nothing measures
are refused."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.recipe import Validation
from pipeline.recipe.methods import METHODS
from pipeline.training.plan import TrainingPlan
from pipeline.training.schedule import SCHEMAS
from tests.pipeline.training.plans import SFT_SETTINGS, THUMBS_DOWN, make_plan

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


ASKED = Validation(every_steps=2, prompts=8, samples=1, max_completion_tokens=32)


@pytest.mark.parametrize("method", METHODS)
def test_rows_have_the_columns_of_their_table(method: str, tmp_path: Path) -> None:
    _, plan = make_plan(tmp_path, method)
    assert plan.data is not None and plan.data.rows == plan.trained_by().scheduled_rows
    table = pq.read_table(plan.data.uri)
    assert table.schema.names == SCHEMAS[plan.trained_by().table].names
    prompts = [json.dumps(each) for each in table["prompt"].to_pylist()]
    assert prompts[: len(set(prompts))] != sorted(prompts)[: len(set(prompts))], "they are in an order of their own"


def test_consent_withdrawn_from_one_kind_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"thumbs of both kinds, and these are 18 up and 0 down"):
        make_plan(tmp_path, "kto", withdrawn=THUMBS_DOWN)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, r"held-out prompts: set training\.validation\.every_steps"),
        ({"validation": ASKED, "lora": None}, "the base model.*training.lora"),
    ],
)
def test_a_limit_that_nothing_measures_is_refused(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    limited = SFT_SETTINGS.model_copy(update={"kl_stop": 5.0})
    with pytest.raises(ValueError, match=rf"training\.sft\.kl_stop 5 is measured .*{complaint}"):
        make_plan(tmp_path, "sft", sft=limited, **changes)
    assert make_plan(tmp_path / "kto", "kto", validation=ASKED, lora=None)[1].data is not None
