"""What the gate makes of judged suites, and which recipes may have them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evals import gate
from evals.gate import Verdict
from evals.report import table
from pipeline.recipe import Evaluation
from tests.pipeline.rewards.judge.endpoint import Request, Said, Server, parts, preferring

from .judging import gated, judge, section

pytestmark = pytest.mark.slow


def test_a_preferred_candidate_passes_and_a_disliked_one_fails(tmp_path: Path) -> None:
    settings = section(role="target")
    verdict, report = gated(tmp_path / "better", judge(0.75), settings)
    assert verdict.verdict is Verdict.PASS, verdict.reasons
    assert "| at equal lengths |" in table(report, verdict) and "judged-0 (target" in table(report)
    (measured,) = report.judged
    doubted = report.model_copy(update={"judged": (measured.model_copy(update={"problems": ("a problem",)}),)})
    assert gate.judge(doubted, report.section).reasons[0] == "judged-0: a problem"
    verdict, _ = gated(tmp_path / "worse", judge(0.25), settings)
    assert verdict.verdict is Verdict.FAIL
    assert verdict.reasons[0].startswith("judged-0: preference not shown")


DISAGREE = "judged-0: the tests of preference disagree"


@pytest.mark.parametrize(
    ("figure", "value", "words"),
    [
        ("lower", -0.01, DISAGREE),
        pytest.param("bootstrap_lower", -0.01, DISAGREE, marks=pytest.mark.variant),
        ("standard_error", 0.2, "judged-0: the standard error of the win rate is 0.2000, above 0.1"),
    ],
)
def test_a_preference_that_is_not_sure_is_inconclusive(tmp_path: Path, figure: str, value: float, words: str) -> None:
    _, report = gated(tmp_path, judge(0.75), section(role="target"))
    (measured,) = report.judged
    assert measured.win_rate is not None
    controlled = measured.win_rate.controlled.model_copy(update={figure: value})
    rate = measured.win_rate.model_copy(update={"controlled": controlled})
    changed = report.model_copy(update={"judged": (measured.model_copy(update={"win_rate": rate}),)})
    verdict = gate.judge(changed, report.section)
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert verdict.reasons[0].startswith(words)


@pytest.mark.parametrize("role", ["target", "guard"])
def test_a_judge_that_always_says_a_is_inconclusive(tmp_path: Path, role: str) -> None:
    admits = judge(0.5)

    def always_a(server: Server, request: Request, place: int) -> Said:
        return preferring("A") if "answer A" in parts(request) else admits(server, request, place)

    verdict, _ = gated(tmp_path, always_a, section(role=role))
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert "prefers another answer of 100% of the pairs when their order is swapped" in verdict.reasons[0]


SUMS: dict[str, Any] = {"kind": "items", "preset": "arithmetic"}


PAIRS: dict[str, Any] = {"kind": "judged", "name": "judged", "over": "arithmetic", "role": "target"}


@pytest.mark.parametrize(
    ("suites", "changes", "words"),
    [
        ([{**SUMS, "role": "report"}, PAIRS], {}, "a judge would decide alone"),
        ([PAIRS], {}, "the suite judged judges arithmetic, which is no suite"),
        ([SUMS, {**PAIRS, "over": "sums"}], {}, "judges sums, which is no suite with items"),
        (
            [SUMS, PAIRS, {**PAIRS, "name": "twice", "over": "judged"}],
            {},
            "twice judges judged, which is no suite",
        ),
        ([SUMS, {**PAIRS, "name": "arithmetic"}], {}, "two suites are named arithmetic"),
        ([SUMS, {**PAIRS, "samples_per_item": 2}], {}, "Extra inputs"),
        ([{**SUMS, "role": "guard"}], {}, "no suite has the role target"),
        ([SUMS, {**SUMS, "role": "report"}], {}, "two suites are named arithmetic"),
    ],
)
def test_suites_that_decide_nothing_are_refused(
    suites: list[dict[str, Any]], changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(ValidationError, match=words):
        Evaluation.model_validate({"suites": suites, **changes})


def test_a_judge_does_not_decide_without_a_checked_suite(tmp_path: Path) -> None:
    _, report = gated(tmp_path, judge(0.75), section(role="target"))
    verdict = gate.judge(report.model_copy(update={"measurements": ()}), report.section)
    assert (verdict.verdict, verdict.reasons) == (Verdict.INCONCLUSIVE, ("no target was measured",))
