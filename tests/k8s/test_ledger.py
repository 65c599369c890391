"""The account after a launch: its sums, its order, and what it says when there is nothing to say."""

import pytest

from k8s.attempts import LaunchAttempt, ledger
from pipeline.core.storage import CheckpointRef, ModelRef
from pipeline.recipe import Accelerator, Compute, Kubernetes
from pipeline.training.result import CAUSES, Goodput, Preemption, TrainingResult

IMAGE = f"registry.example/trainer@sha256:{'0' * 64}"
NOTHING = ModelRef(uri="adapter", digest="0" * 64)


def compute(first: float, fallback: float = 0.0) -> Compute:
    placed = Kubernetes(image=IMAGE, capacity="spot_first", on_demand_usd_per_hour=fallback)
    return Compute(nodes=3, processes=8, accelerator=Accelerator(usd_per_hour=first), kubernetes=placed)


def result(goodput: Goodput, preemptions: tuple[Preemption, ...] = ()) -> TrainingResult:
    checkpoint = CheckpointRef(adapter=NOTHING, model=NOTHING, step=1)
    return TrainingResult(
        iteration="one", plan_digest="0" * 64, checkpoint=checkpoint, metrics=(), seconds=goodput.productive_s,
        attempts=1, resumed_from=(), goodput=goodput, preemptions=preemptions,
    )  # fmt: skip


def test_a_launch_of_two_attempts_and_three_interruptions() -> None:
    goodput = Goodput(total_s=1300, productive_s=400, badput_s={**dict.fromkeys(CAUSES, 0.0), "waiting": 720.0})
    lost = Preemption(cause="killed", step=9, lost_steps=3)
    attempts = [
        LaunchAttempt(attempt=1, name="train-1", opened_at=0, closed_at=9000, outcome="crashed", restarts=2),
        LaunchAttempt(attempt=2, name="train-2", opened_at=9000, closed_at=21_600, outcome="succeeded", restarts=1),
    ]
    actual = ledger(attempts, result(goodput, (lost,) * 3), compute(10, 15), devices=24)
    assert (actual.attempts, actual.restarts, actual.preemptions, actual.lost_steps) == (2, 3, 3, 9)
    assert actual.device_hours == pytest.approx(24 * (1300 - 720) / 3600) and actual.measured
    assert (actual.usd.low, actual.usd.high) == (10 * actual.device_hours, 15 * actual.device_hours)


@pytest.mark.parametrize("silent", [None, result(Goodput(total_s=0, productive_s=0, badput_s={}))])
def test_ledger_uses_the_attempts_time_without_an_account(silent: TrainingResult | None) -> None:
    attempts = [LaunchAttempt(attempt=1, name="a", opened_at=100, closed_at=3700, outcome="crashed", why="exit 1"),
                LaunchAttempt(attempt=2, name="b", opened_at=4000)]  # fmt: skip
    actual = ledger(attempts, silent, compute(10), devices=24)
    assert (actual.device_hours, actual.usd.high, actual.measured) == (24, 240, False)
