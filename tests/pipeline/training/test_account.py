"""The account of time and tokens: every second has one cause, rates are published figures and sums done by hand, and a
step has one line of metrics."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from pipeline.training.account import account, interruptions
from pipeline.training.journal import Kind, MetricsLog, TrainingEvent, read_rows
from pipeline.training.rates import Shape, Tokens, step_rates
from pipeline.training.result import CAUSES, Preemption

moments = st.floats(-1e6, 1e6) | st.just(1.7e9)
lines = st.builds(
    TrainingEvent,
    kind=st.sampled_from(["started", "ready", "step", "saved", "validated", "stopping", "ended"]),
    at=moments,
    step=st.integers(0, 9),
    seconds=st.dictionaries(st.sampled_from(["step", "save", "validation"]), st.floats(-1e6, 1e6) | st.just(math.nan)),
    why=st.just("SIGTERM"),
)


@given(st.lists(lines, max_size=30))
@example([TrainingEvent(kind="step", at=0, step=1, seconds={"step": -1.0})])
def test_goodput_loses_no_second_and_counts_none_twice(events: Sequence[TrainingEvent]) -> None:
    """Clocks that differ between machines, lines that a kill cut out, seconds that cannot be: still an account."""
    found = account(events)
    assert tuple(found.badput_s) == CAUSES
    assert min(found.productive_s, *found.badput_s.values()) >= 0
    passed = max((e.at for e in events), default=0.0) - events[0].at if events else 0.0
    assert found.total_s == pytest.approx(max(0.0, passed), rel=1e-9, abs=1e-6)
    assert found.total_s == found.productive_s + sum(found.badput_s.values())
    assert 0 <= found.share <= 1
    assert all(each.lost_steps >= 0 for each in interruptions(events))


def journal(*lines: tuple[Kind, float, int]) -> Iterator[TrainingEvent]:
    for kind, at, step in lines:
        yield TrainingEvent(kind=kind, at=at, step=step, why={"stopping": "SIGTERM", "ended": "stopped"}.get(kind, ""))


def test_step_longer_than_the_grace_is_lost_work() -> None:
    events = list(journal(("started", 0, 0), ("ready", 1, 0), ("step", 11, 1), ("saved", 12, 1), ("stopping", 18, 1),
                          ("started", 20, 1), ("ready", 21, 1), ("step", 31, 2), ("ended", 33, 2)))  # fmt: skip
    found = account(events)
    assert found.productive_s == 20
    assert found.badput_s == {"start": 2, "save": 1, "validation": 0, "lost": 6, "waiting": 2, "end": 2}
    assert interruptions(events) == (Preemption(cause="SIGTERM", step=1, lost_steps=0),)


def test_stopped_training_counts_no_step_after_its_best() -> None:
    events = list(journal(("started", 0, 0), ("ready", 1, 0), ("step", 3, 1), ("step", 7, 2), ("ended", 8, 1)))
    found = account(events)
    assert (found.productive_s, found.badput_s["lost"], found.badput_s["end"]) == (2, 4, 1)
    assert interruptions(events) == ()


def test_fall_back_loses_the_steps_of_earlier_attempts_too() -> None:
    events = list(journal(("started", 0, 0), ("ready", 0, 0), ("step", 1, 1), ("step", 2, 2), ("started", 2, 2),
                          ("ready", 2, 2), ("step", 3, 3), ("started", 3, 1), ("ready", 3, 1),
                          ("step", 4, 2)))  # fmt: skip
    found = account(events)
    assert (found.productive_s, found.badput_s["lost"]) == (2, 2)
    assert [each.lost_steps for each in interruptions(events)] == [0, 2]
    assert {each.cause for each in interruptions(events)} == {"killed"}


PALM = Shape(parameters=540_350_000_000, trainable=540_350_000_000, layers=118, attention_width=48 * 256)
"""Table 1 of arXiv 2204.02311."""


def test_palm_reproduces_its_published_mfu() -> None:
    """Appendix B: 238.3 thousand tokens a second on 6,144 TPU v4 of 275 TFLOPS, at 2,048 tokens, are 46.2%."""
    tokens = Tokens(generated=0, trained=238_300, length=2048)
    found = step_rates(tokens, {"step": 1.0, "update": 1.0}, PALM, 6144, 275)
    assert found["mfu"] == pytest.approx(0.462, abs=0.001)
    assert found["tokens_per_s_per_device"] == pytest.approx(238_300 / 6144)


def test_frozen_weights_need_no_gradient_of_their_own() -> None:
    full = Shape(parameters=1000, trainable=1000, layers=2, attention_width=8)
    lora = full._replace(trainable=10)
    assert full.flops(16, True) == 6 * 1000 + 12 * 2 * 8 * 16 == 3 * full.flops(16, False)
    assert lora.flops(16, True) == 4 * 1000 + 2 * 10 + 12 * 2 * 8 * 16


def test_log_probabilities_count_as_work_and_as_time() -> None:
    shape = Shape(parameters=10**9, trainable=10**9, layers=1, attention_width=1)
    seconds = {"step": 10.0, "generate": 5.0, "logprobs": 1.0, "update": 3.0}
    tokens = Tokens(generated=500, trained=1000, scored=1000)
    found = step_rates(tokens, seconds, shape, 2, 0.001)
    assert found["tokens_per_s"] == 100
    assert found["tokens_per_s_per_device"] == 50
    assert found["generate_tokens_per_s"] == 100
    assert found["mfu"] == pytest.approx(8e9 * 1000 / (4.0 * 1e9 * 2))
    inside = step_rates(tokens, {"step": 5.0, "update": 4.0}, shape, 2, 0.001)
    assert inside["mfu"] == found["mfu"], "DPO's reference pass is in its update's time"
    without = step_rates(tokens._replace(scored=0), {"step": 5.0, "update": 3.0}, shape, 2, 0.001)
    assert without["mfu"] == pytest.approx(6e9 * 1000 / (3.0 * 1e9 * 2))


@pytest.mark.parametrize(
    ("tokens", "seconds", "peak", "names"),
    [
        (Tokens(5, 9), {"step": 1.0, "generate": 0.5, "update": 0.5}, None, {"generate_tokens_per_s"}),
        (Tokens(5, 9), {"step": 1.0, "generate": 0.0}, 989.0, set()),
        (Tokens(0, 9), {"step": 1.0, "update": 0.5}, 989.0, {"mfu"}),
        (Tokens(0, 0), {"step": 1.0, "update": 0.5}, 989.0, None),
        (Tokens(5, 9), {}, 989.0, None),
    ],
)
def test_what_was_not_measured_is_absent(
    tokens: Tokens, seconds: dict[str, float], peak: float | None, names: set[str] | None
) -> None:
    found = step_rates(tokens, seconds, PALM, 1, peak)
    assert set(found) == (set() if names is None else {"tokens_per_s", "tokens_per_s_per_device", *names})


def test_step_that_is_computed_again_keeps_its_first_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    first = MetricsLog(path)
    for step in range(3):
        first.add({"step": step, "loss": step / 2})
    before, end = read_rows(path)
    again = MetricsLog(path)
    for step in range(1, 4):
        again.add({"step": step, "loss": 9.0})
    rows = read_rows(path)[0]
    assert rows[:3] == before
    assert [(row.step, row.metrics) for row in rows] == [
        (0, {"loss": 0.0}), (1, {"loss": 0.5}), (2, {"loss": 1.0}), (3, {"loss": 9.0}),
    ]  # fmt: skip
    assert read_rows(path, end)[0] == rows[3:]
    assert [row.at for row in rows] == sorted(row.at for row in rows)


def test_line_that_a_kill_cut_is_written_again(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    log = MetricsLog(path)
    for step in range(2):
        log.add({"step": step, "kl": math.nan})
    path.write_bytes(path.read_bytes()[:-5])
    assert [row.step for row in read_rows(path)[0]] == [0], "the reader takes whole lines alone"
    MetricsLog(path).add({"step": 1, "kl": 0.5})
    (zero, one) = read_rows(path)[0]
    assert math.isnan(zero.metrics["kl"]) and one.metrics == {"kl": 0.5}


def test_rank_without_checkpoints_keeps_nothing() -> None:
    MetricsLog(None).add({"step": 1, "loss": 1.0})
