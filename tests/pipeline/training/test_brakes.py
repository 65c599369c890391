"""A brake's stop keeps the checkpoint that beat the start; any other stop, and one with nothing to keep, stays."""

import pytest

from pipeline.training.brakes import HeldOutScores, braked, early_stop
from pipeline.training.result import HealthFinding, Verdict

SCORE = "held_out/second_score"


def scores(*values: float | None) -> HeldOutScores:
    """At steps 0, 8, 16, ..."""
    held_out = HeldOutScores(SCORE)
    for at, value in enumerate(values):
        row = {"step": 8 * at, "held_out/length": 14.0}
        held_out.add(row if value is None else {**row, SCORE: value})
        held_out.add({"step": 8 * at + 1, "loss": 0.5})
    return held_out


def finding(rule: str, verdict: Verdict = "STOP") -> HealthFinding:
    return HealthFinding(verdict=verdict, rule=rule, step=24, reason="too far")


@pytest.mark.parametrize(
    ("values", "best"),
    [
        ((0.4, 0.5, 0.6, 0.3), 16),
        ((0.4, 0.6, 0.6, 0.3), 8),
        ((0.4, 0.3, 0.9), None),  # of the step of the brake itself nothing is saved
        ((0.4, 0.4, 0.3), None),
        ((0.4, None, 0.5, 0.3), 16),
        ((None, 0.5, 0.5), None),
        ((0.4, 0.5), None),
        ((), None),
    ],
)
def test_the_best_checkpoint_beat_the_start(values: tuple[float | None, ...], best: int | None) -> None:
    assert scores(*values).best == best


@pytest.mark.parametrize("rule", ["answer_kl", "second_score"])
def test_a_brake_keeps_what_was_better(rule: str) -> None:
    held, note = early_stop([finding("length", "HOLD"), finding(rule)], 16)
    assert (held.rule, held.verdict) == ("length", "HOLD")
    assert (note.rule, note.verdict, note.step) == (rule, "PASS", 24)
    assert note.reason == "too far: ends here, the checkpoint of step 16 stays"
    assert braked([held, note])
    assert {each.verdict for each in early_stop([finding("kl"), finding(rule)], 16)} == {"PASS"}, "the same distance"


@pytest.mark.parametrize(
    ("rules", "best"),
    [
        (["answer_kl"], None),  # nothing to keep
        (["kl"], 16),  # alone it is the sentinel's own limit
        (["second_score", "not_finite"], 16),
        (["second_score", "accuracy_collapse"], 16),
        (["second_score", "unwatched"], 16),
        ([], 16),
    ],
)
def test_any_other_stop_stays(rules: list[str], best: int | None) -> None:
    findings = tuple(finding(rule) for rule in rules)
    assert early_stop(findings, best) == findings and not braked([*findings, finding("solved", "PASS")])
