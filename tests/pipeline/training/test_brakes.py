"""A brake's stop keeps the checkpoint that beat the start; any other stop does not."""

from typing import Any

import pytest

from pipeline.recipe import Sentinel
from pipeline.training.result import HealthFinding, Verdict
from pipeline.training.sentinel import HealthMonitor, HeldOutScores, early_stop

SCORE = "held_out/second_score"


def scores(*values: float | None) -> HeldOutScores:
    """At steps 0, 8, 16, ..."""
    held_out = HeldOutScores(SCORE)
    for at, value in enumerate(values):
        held_out.add(8 * at, {"held_out/length": 14.0} if value is None else {"held_out/length": 14.0, SCORE: value})
        held_out.add(8 * at + 1, {"loss": 0.5})
    return held_out


def finding(rule: str, verdict: Verdict = "STOP") -> HealthFinding:
    return HealthFinding(verdict=verdict, rule=rule, step=24, reason="too far")


@pytest.mark.parametrize(
    ("values", "best", "was_better"),
    [
        ((0.4, 0.5, 0.6, 0.3), 16, True),
        ((0.4, 0.6, 0.6, 0.3), 8, True),
        ((0.4, 0.3, 0.6, 0.5), 16, True),
        ((0.4, 0.3, 0.9), None, False),  # of the step of the brake itself nothing is saved
        ((0.4, 0.4, 0.3), None, True),
        ((0.4, None, 0.5, 0.3), 16, True),
        ((None, 0.5, 0.5), None, True),
        ((0.4, 0.5, None), 8, True),
        ((0.4, None, 0.5), None, False),
        ((0.4, 0.5), None, False),
        ((), None, False),
    ],
)
def test_the_best_checkpoint_beat_the_start(
    values: tuple[float | None, ...], best: int | None, was_better: bool
) -> None:
    assert (scores(*values).best, scores(*values).was_better) == (best, was_better)


@pytest.mark.parametrize("kept", [{}, {"keeps_best": True}])
def test_a_training_that_a_brake_ends_keeps_its_best_checkpoint(kept: dict[str, Any]) -> None:
    watch = HealthMonitor(Sentinel(), answer_kl_stop=5.0, judged_by=SCORE, **kept)
    watch.keep(finding("solved", "PASS"))
    for step, score, far in ((0, 0.4, 0.0), (8, 0.6, 1.0), (16, 0.5, 6.0)):
        row = {"held_out/length": 14.0, "held_out/answer_kl": far, SCORE: score, "held_out/second_error": 0.5}
        watch.add({"step": step, **row})
    _, said = watch.health.findings
    assert (said.rule, said.verdict) == ("answer_kl", "PASS" if kept else "STOP")
    assert watch.braked is bool(kept)


@pytest.mark.parametrize("rule", ["answer_kl", "second_score"])
def test_a_brake_keeps_what_was_better(rule: str) -> None:
    held, note = early_stop([finding("length", "HOLD"), finding(rule)], 16)
    assert (held.rule, held.verdict) == ("length", "HOLD")
    assert (note.rule, note.verdict, note.step) == (rule, "PASS", 24)
    assert note.reason == "too far: ends here, the checkpoint of step 16 stays"
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
    assert early_stop(findings, best) == findings
