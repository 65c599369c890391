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


def test_a_brake_with_nothing_to_keep_stops() -> None:
    assert early_stop([finding("answer_kl")], None) == (finding("answer_kl"),)
    assert not braked([finding("answer_kl")])


def test_kl_a_token_is_the_distance_that_a_brake_measures() -> None:
    assert {note.verdict for note in early_stop([finding("kl"), finding("answer_kl")], 16)} == {"PASS"}
    assert early_stop([finding("kl")], 16) == (finding("kl"),), "alone it is the sentinel's own limit"


@pytest.mark.parametrize("rule", ["not_finite", "accuracy_collapse", "unwatched"])
def test_a_brake_beside_another_stop_stops(rule: str) -> None:
    both = (finding("second_score"), finding(rule))
    assert early_stop(both, 16) == both and not braked(both)


def test_a_healthy_step_is_no_early_stop() -> None:
    assert early_stop([], 16) == () and not braked([])
    assert not braked([finding("solved", "PASS")])
