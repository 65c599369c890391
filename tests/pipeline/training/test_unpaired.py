"""Training on answers that nothing is compared with: the limits that KTO and SFT are held to."""

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.recipe import Validation
from pipeline.recipe.methods import METHODS
from pipeline.training.schedule import SCHEMAS
from tests.pipeline.training.plans import KTO_SETTINGS, SFT_SETTINGS, THUMBS_DOWN, make_plan

ASKED = Validation(every_steps=2, prompts=8, samples=1, max_completion_tokens=32)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({}, r"measured when held-out prompts are answered: set training\.validation\.every_steps"),
        ({"validation": ASKED, "engine": "nemo_rl"}, r"measured by TRL's trainers alone: set training\.engine trl"),
    ],
)
def test_a_limit_that_nothing_measures_is_refused(changes: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=rf"training\.kto\.kl_stop 5 is {complaint}"):
        make_plan(tmp_path, "kto", kto=KTO_SETTINGS.model_copy(update={"kl_stop": 5.0}), **changes)


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


def test_sft_of_all_weights_has_no_limit_on_kl(tmp_path: Path) -> None:
    limited = SFT_SETTINGS.model_copy(update={"kl_stop": 5.0})
    with pytest.raises(
        ValueError, match=r"training\.sft\.kl_stop 5 is measured against the base model.*training\.lora"
    ):
        make_plan(tmp_path, "sft", sft=limited, validation=ASKED, lora=None)
    assert make_plan(tmp_path / "kto", "kto", validation=ASKED, lora=None)[1].data is not None
