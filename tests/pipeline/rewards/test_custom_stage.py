"""The user's own function over a governed table: composed, remembered, asked again only where it changed."""

import json
from pathlib import Path

import pytest

from pipeline.recipe.custom import CustomReward

from .conftest import Label, call, day_file, rows_of
from .functions import BAD, QUALITY, write_function

pytestmark = pytest.mark.slow

ALONE = {"verified": {"custom": 1.0}, "judged": {"custom": 1.0}}
GOLD = "region; failover; replica"
ANSWERS = {
    "Use a replica in another region, because failover then takes seconds.": 1.0,
    "Use a replica in another region, because that is near": 0.5 * 2 / 3 + 0.25 + 0.15,
    "A replica.": 0.5 / 3 + 0.15 + 0.1,
    "It depends " + "on many things " * 20: 0.0,
    "Region, failover, replica" + " and so on" * 20 + ".": 0.5 + 0.1,
}
"""What the composed reward of seed 000 makes of each, by hand."""


def recipe(section: CustomReward) -> dict[str, object]:
    return {**ALONE, "custom": section.model_dump()}


def test_logged_completions_are_worth_the_seeds_sum(export: Path, tmp_path: Path, label: Label) -> None:
    day_file(export, 5, [call(n, answer, GOLD) for n, answer in enumerate(ANSWERS)])
    labels = label(**recipe(write_function(tmp_path / "f", QUALITY, "quality")))
    rows = rows_of(labels)
    assert [rows[f"t{n}"]["final_reward"] for n in range(5)] == pytest.approx(list(ANSWERS.values()), abs=1e-12)
    assert rows["t0"]["custom_id"] == (labels.custom and labels.custom.id) != ""
    assert labels.custom is not None and (labels.custom.scored, labels.custom.distinct) == (5, 5)
    assert labels.custom.failed == {}


def test_bad_answers_are_nulls_with_a_reason(export: Path, tmp_path: Path, label: Label) -> None:
    kinds = ["hangs", "raises", "NaN", "1e9", "list", "none", "prints"]
    day_file(export, 5, [call(n, kind) for n, kind in enumerate(kinds)])
    section = write_function(tmp_path / "f", BAD, timeout_s=1.0)
    labels = label(**recipe(section))
    rows = rows_of(labels)
    reasons = ["custom_timeout", "custom_raised", *["custom_invalid"] * 3, "custom_abstained", ""]
    assert [rows[f"t{n}"]["reason"] for n in range(7)] == reasons
    assert [rows[f"t{n}"]["final_reward"] for n in range(7)] == [None] * 6 + [0.75]
    assert rows["t3"]["custom_detail"] == "float: 1000000000.0"
    assert json.loads(rows["t2"]["missing"]) == {"custom": "custom_invalid"}
    assert labels.custom is not None
    assert labels.custom.failed == {
        "custom_timeout": 1, "custom_raised": 1, "custom_invalid": 3, "custom_abstained": 1,
    }  # fmt: skip
    again = label(digest="later", **recipe(section))
    assert (again.checked, again.remembered) == (1, 6), "a hang may have been the machine's: only that is asked again"


def test_only_a_changed_function_is_asked_anew(export: Path, tmp_path: Path, label: Label) -> None:
    day_file(export, 5, [call(n, f"answer {n}") for n in range(6)])
    half = "def reward(prompt, completion, reference, metadata): return 0.5\n"
    section = write_function(tmp_path / "f", half)
    first = label(**recipe(section))
    assert (first.checked, first.remembered) == (6, 0)
    moved = write_function(tmp_path / "g", half)
    assert (label(digest="b", **recipe(moved)).checked) == 0, "the same content elsewhere is the same function"
    third = label(digest="c", **recipe(write_function(tmp_path / "f", half.replace("0.5", "0.25"))))
    assert (first.mean_reward, third.checked, third.mean_reward) == (0.5, 6, 0.25)
