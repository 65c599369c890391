"""What the gate makes of judged suites, and which recipes may have them."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from evals import gate
from evals.gate import GateVerdict, Verdict
from evals.records import Difference, EvalReport, Guard
from evals.report import table
from pipeline.recipe import Evaluation
from tests.pipeline.rewards.judge.endpoint import Request, Said, Server, parts, preferring

from .judging import evidence, gated, judge, judged, reported, section

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def preferred(tmp_path_factory: pytest.TempPathFactory) -> tuple[GateVerdict, EvalReport]:
    return gated(tmp_path_factory.mktemp("better"), judge(0.75), section(role="target"))


def changed(report: EvalReport, role: str = "target", **changes: Any) -> EvalReport:
    """The report with another role of its judged suite, and other fields of what was measured of that."""
    (measured,) = report.judged
    judged = (measured.model_copy(update=changes),)
    return report.model_copy(update={"section": section(role=role), "judged": judged})


def test_a_preferred_candidate_passes_and_a_disliked_one_fails(
    preferred: tuple[GateVerdict, EvalReport], tmp_path: Path
) -> None:
    verdict, report = preferred
    assert verdict.verdict is Verdict.PASS, verdict.reasons
    assert "| at equal lengths |" in table(report, verdict) and "judged-0 (target" in table(report)
    verdict, _ = gated(tmp_path, judge(0.25), section(role="target"))
    assert verdict.verdict is Verdict.FAIL
    assert verdict.reasons[0].startswith("judged-0: preference not shown")


def test_equal_answers_are_without_effect_whatever_a_judge_says(tmp_path: Path) -> None:
    settings = section(role="target")
    gathered = evidence(settings)
    gathered = gathered.model_copy(update={"arms": (gathered.arms[0], gathered.arms[0])})
    report = reported(settings, gathered, judged(tmp_path, judge(0.5), settings, gathered)[0])
    assert gate.judge(report, settings).reasons == ("no effect: all 120 answers equal the champion's",)


DISAGREE = "judged-0: the tests of preference disagree"


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"standard_error": 0.1, "lower": -0.01}, DISAGREE),
        ({"bootstrap_lower": 0.0}, DISAGREE),
        ({"standard_error": 0.2, "lower": 0.0}, "judged-0: the standard error of the win rate is 0.2000, above 0.1"),
        ({"upper": float("nan")}, "judged-0: a number is not finite"),
    ],
)
def test_a_preference_that_is_not_sure_is_inconclusive(
    preferred: tuple[GateVerdict, EvalReport], figures: dict[str, float], words: str
) -> None:
    rate = preferred[1].judged[0].win_rate
    assert rate is not None
    unsure = rate.model_copy(update={"controlled": rate.controlled.model_copy(update=figures)})
    report = changed(preferred[1], win_rate=unsure)
    verdict = gate.judge(report, report.section)
    assert verdict.verdict is Verdict.INCONCLUSIVE
    assert len(verdict.reasons) == 1 and verdict.reasons[0].startswith(words)


NAN = Difference(**dict.fromkeys(Difference.model_fields, float("nan")))
NO_NUMBER = Guard(name="loss", rule="safe", champion=0.5, candidate=0.5, margin=0.1, difference=NAN)


@pytest.mark.parametrize(
    ("role", "changes", "reason"),
    [
        ("target", {"problems": ("a problem",)}, "a problem"),
        ("target", {"win_rate": None}, "nothing was measured"),
        ("guard", {"loss": None}, "its loss was not measured"),
        ("guard", {"loss": NO_NUMBER}, "a number is not finite"),
        ("report", {"problems": ("a problem",)}, None),
    ],
)
def test_what_was_not_measured_is_inconclusive_where_it_decides(
    preferred: tuple[GateVerdict, EvalReport], role: str, changes: dict[str, Any], reason: str | None
) -> None:
    report = changed(preferred[1], role, **changes)
    verdict = gate.judge(report, report.section)
    assert verdict.verdict is (Verdict.INCONCLUSIVE if reason else Verdict.PASS)
    assert not reason or verdict.reasons == (f"judged-0: {reason}",)


def test_a_guard_needs_no_preference(tmp_path: Path) -> None:
    verdict, _ = gated(tmp_path, judge(0.5), section(role="guard", margin=0.3))
    assert verdict.verdict is Verdict.PASS
    assert sum("judged-0" in reason for reason in verdict.reasons) == 1, "the guard alone"


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


def test_a_judge_does_not_decide_without_a_checked_suite(preferred: tuple[GateVerdict, EvalReport]) -> None:
    report = preferred[1].model_copy(update={"measurements": ()})
    verdict = gate.judge(report, report.section)
    assert (verdict.verdict, verdict.reasons) == (Verdict.INCONCLUSIVE, ("no target was measured",))
