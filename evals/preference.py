"""What a judge's preferences show, as the gate reads them: whether there are any, and for whom they speak.

Owns the reading of a judged suite's measurement. Refuses to decide (gate.py) and to measure (judged_evidence.py).
"""

from __future__ import annotations

import math

from evals.measurements import EvalReport, JudgedMeasurement
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import JudgedSuite


def gating(report: EvalReport, section: Evaluation) -> list[tuple[JudgedSuite, JudgedMeasurement]]:
    """The judged suites that decide something, each with its measurement or an empty one."""
    measured = {each.suite: each for each in report.judged}
    return [(each, measured.get(each.name) or _empty(each.name)) for each in section.judged if each.role != "report"]


def _empty(name: str) -> JudgedMeasurement:
    return JudgedMeasurement(suite=name, judge="", problems=("nothing was measured",), win_rate=None, loss=None)


def inadequacies(settings: JudgedSuite, measured: JudgedMeasurement, section: Evaluation) -> list[str]:
    """Why nothing can be decided by these preferences; empty where it can."""
    rate = measured.win_rate
    if measured.problems or rate is None:
        return [f"{settings.name}: {why}" for why in measured.problems or ("nothing was measured",)]
    reasons: list[str] = []
    if settings.role == "guard" and measured.loss is None:
        reasons.append(f"{settings.name}: its loss was not measured")
    entries = [rate.raw, rate.controlled, *([measured.loss.difference] if measured.loss else [])]
    if not all(math.isfinite(value) for entry in entries for value in entry.model_dump().values()):
        reasons.append(f"{settings.name}: a number is not finite")
    if settings.role == "target" and not rate.controlled.standard_error <= section.max_standard_error:
        reasons.append(
            f"{settings.name}: the standard error of the win rate is {rate.controlled.standard_error:.4f}, above "
            f"{section.max_standard_error}: judge more items"
        )
    return reasons


def preferred(measured: JudgedMeasurement) -> tuple[list[bool], str]:
    """Whether each of the two tests shows that the candidate is preferred at equal lengths, and the numbers."""
    if measured.win_rate is None:
        return [False], f"{measured.suite}: no preference"
    raw, gain = measured.win_rate.raw.value, measured.win_rate.controlled
    return [gain.lower > 0, gain.bootstrap_lower > 0], (
        f"{measured.suite}: preferred in {0.5 + gain.value:.4f} at equal lengths, at least {0.5 + gain.lower:.4f} (t) "
        f"and {0.5 + gain.bootstrap_lower:.4f} (bootstrap), {0.5 + raw:.4f} as judged"
    )
