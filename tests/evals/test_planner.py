"""The page of a plan, from recipe to exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from evals import bundle
from evals.__main__ import main
from evals.bundle import SuiteEvidence
from pipeline.storage import Store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def recipe(tmp_path: Path) -> list[str]:
    """`plan` with a recipe over a file of 200 items below the data root."""
    lines = [{"prompt": f"What is {n} and {n}?", "reference": str(2 * n), "cluster": f"c{n % 150}"} for n in range(200)]
    (tmp_path / "mine.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    suites = f"[{{kind: jsonl, name: mine, path: {tmp_path}/mine.jsonl}}]"
    recipe = str(ROOT / "jobs" / "recipes" / "embedded.yaml")
    changes = [f"suites={suites}", "samples_per_item=4", "luck_per_year=0.05"]
    return ["plan", recipe, f"data_root={tmp_path}", *(f"evaluation.{change}" for change in changes)]


def test_a_plan_is_printed(recipe: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*recipe, "--tokens-per-second", "100", "--usd-per-hour", "2", "--item-cost", "12"]) == 0
    text = capsys.readouterr().out
    row = next(line.split() for line in text.splitlines() if line.startswith("mine"))
    assert row == ["mine", "target", "200", "150", "4", "0.100", "0.300", "2.96", "10.8%", "-", "-", "-", "2.0%"]
    assert "improvement at level 0.0025" in text
    assert "variances of mine are assumed" in text
    assert "first gate, both models: 1,600 answers, 51,200 tokens, 0.14 hours, 0.28 USD" in text
    assert "later gates, the candidate alone: 800 answers" in text
    assert "costs as much as 12 answers: mine 6" in text


def test_an_earlier_bundle_replaces_assumptions(
    kit: Any, tmp_path: Path, recipe: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    section = kit.section(suites=[{"kind": "jsonl", "name": "mine", "path": "mine.jsonl"}])
    items = kit.suite(section, name="mine", count=200)
    arms = kit.arm("old", section, items, 0.5, tokens=21), kit.arm("new", section, items, 0.6, tokens=41)
    evidence = bundle.evidence("i", section, bundle.Gathered((SuiteEvidence(suite=items, arms=arms),)))
    bundle.publish(Store(tmp_path), "evidence", evidence)
    assert main([*recipe, "--bundle", str(tmp_path / "evidence")]) == 0
    text = capsys.readouterr().out
    assert "An answer has 31 tokens (as in the bundle)" in text
    assert "assumed" not in text and "0.100  0.300" not in text


def test_a_gate_that_nobody_could_pass_is_an_error(recipe: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*recipe, "evaluation.max_standard_error=0.01"]) == 1
    text = capsys.readouterr().out
    assert (
        "No candidate could pass: suite mine: 200 items" in text and "evaluation.suites.0 a file of more items" in text
    )


def test_a_suite_that_is_not_written_is_explained(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(ROOT / "jobs" / "recipes" / "embedded.yaml"), f"data_root={tmp_path}"]) == 1
    assert "python -m pipeline.demo.suite" in capsys.readouterr().err


def test_prices_below_zero_are_refused(recipe: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*recipe, "--usd-per-hour", "-1"]) == 1
    assert "at least 0" in capsys.readouterr().err
