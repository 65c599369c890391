"""The guard against engines that lie, and against one that doesn't: real weights, rounded to bf16, behind each."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from pipeline.training.freshness import FreshnessGuard, FreshnessProof, LogProbabilities, Probe, StalePolicy
from pipeline.training.freshness.guard import GuardSettings
from pipeline.training.freshness.trl_engine import model_log_probabilities
from tests.variants import one_and_variants

from .conftest import Adapter, Run

pytestmark = pytest.mark.slow

Runs = Callable[[int, float], Run]


class FakeEngine:
    """Holds what `arrives` makes of each push: the adapters pushed so far, the last one newest."""

    def __init__(self, run: Run, arrives: Callable[[Sequence[Adapter]], Adapter], renames: str = "") -> None:
        self.run, self.arrives, self.renames = run, arrives, renames
        self.pushed: list[Adapter] = []
        self.name = ""

    def push(self, version: str, adapter: Adapter) -> None:
        self.pushed.append(adapter)
        self.name = self.renames or version

    def version(self) -> str:
        return self.name

    def log_probabilities(self, probes: Sequence[Probe]) -> Sequence[LogProbabilities]:
        return [model_log_probabilities(self.run.engine(self.arrives(self.pushed)), probes)]


class FakePolicy:
    def __init__(self, run: Run) -> None:
        self.run, self.adapter = run, run.adapters[0]

    def log_probabilities(self, probes: Sequence[Probe]) -> LogProbabilities:
        self.run.hold(self.adapter)
        return model_log_probabilities(self.run.model, probes)

    def base_log_probabilities(self, probes: Sequence[Probe]) -> LogProbabilities:
        return self.run.base_scores(probes)


def newest(pushed: Sequence[Adapter]) -> Adapter:
    return pushed[-1]


def one_behind(pushed: Sequence[Adapter]) -> Adapter:
    return pushed[-2] if len(pushed) > 1 else pushed[0]


def the_first(pushed: Sequence[Adapter]) -> Adapter:
    return pushed[0]


def halved(pushed: Sequence[Adapter]) -> Adapter:
    return {name: weight * (0.5 if "lora_B" in name else 1.0) for name, weight in pushed[-1].items()}


def without_a_layer(pushed: Sequence[Adapter]) -> Adapter:
    return {name: weight * (0.0 if ".layers.1." in name else 1.0) for name, weight in pushed[-1].items()}


def noise(pushed: Sequence[Adapter]) -> Adapter:
    dice = torch.Generator().manual_seed(1)
    return {name: weight + 0.02 * torch.randn(weight.shape, generator=dice) for name, weight in pushed[-1].items()}


def play(run: Run, engine: FakeEngine, versions: Sequence[Adapter], **settings: int) -> list[FreshnessProof]:
    """A training's syncs: push, prove, draw, update. As long as nothing was refused."""
    policy, proofs = FakePolicy(run), []
    guard = FreshnessGuard(engine, policy, GuardSettings(**settings), lambda line: pytest.fail(line))
    for step, adapter in enumerate(versions):
        policy.adapter = adapter
        engine.push(f"step-{step}", adapter)
        batch = run.batch(step % (len(run.drawn) // 8))
        proofs.append(guard.check(f"step-{step}", [Probe(p[:-24], p[-24:]) for p, _ in batch]))
        guard.remember(f"step-{step}", batch)
    return proofs


def test_honest_engine_is_proven_at_each_sync_but_the_first(run_of: Runs) -> None:
    run = run_of(8, 2e-3)
    first, *others = play(run, FakeEngine(run, newest), run.adapters)
    assert not first.proven  # an untrained adapter is the base: nothing to tell apart
    assert all(proof.proven for proof in others)


@pytest.mark.variant
def test_an_honest_engine_is_never_refused(run_of: Runs) -> None:
    run = run_of(8, 2e-3)
    versions = [
        {name: torch.lerp(weight, after[name], part / 25) for name, weight in before.items()}
        for before, after in zip(run.adapters, run.adapters[1:], strict=False)
        for part in range(25)
    ]
    assert len(versions) == 200
    proofs = play(run, FakeEngine(run, newest), versions, probes=10, tokens=12)
    assert sum(proof.proven for proof in proofs) > 20  # movements are small here, and add up until they decide


@pytest.mark.parametrize(
    ("arrives", "lie", "sync"),
    [
        (the_first, "base policy", 1),
        (halved, "scaled adapter", 1),
        (without_a_layer, "scaled adapter", 1),
        (one_behind, "base policy", 1),
        (noise, "other weights", 0),
    ],
)
def test_a_lie_is_refused_at_the_first_sync_that_can_tell(
    run_of: Runs, arrives: Callable[[Sequence[Adapter]], Adapter], lie: str, sync: int
) -> None:
    run = run_of(8, 2e-3)
    engine = FakeEngine(run, arrives)
    with pytest.raises(StalePolicy) as refused:
        play(run, engine, run.adapters)
    assert (refused.value.lie, len(engine.pushed) - 1) == (lie, sync)


@pytest.mark.parametrize(
    ("arrives", "lie"),
    one_and_variants(
        [
            (one_behind, "stale adapter"),
            (the_first, "base policy"),
            (halved, "scaled adapter"),
            (without_a_layer, "scaled adapter"),
        ]
    ),
)
def test_an_engine_that_starts_to_lie_late_is_refused_at_once(
    run_of: Runs, arrives: Callable[[Sequence[Adapter]], Adapter], lie: str
) -> None:
    run = run_of(8, 2e-3)
    engine = FakeEngine(run, lambda pushed: (arrives if len(pushed) > 5 else newest)(pushed))
    with pytest.raises(StalePolicy) as refused:
        play(run, engine, run.adapters)
    assert (refused.value.lie, len(engine.pushed)) == (lie, 6)


def test_an_engine_that_claims_another_version_is_refused(run_of: Runs) -> None:
    run = run_of(8, 2e-3)
    with pytest.raises(StalePolicy, match="claims 'step-7' where 'step-0' was pushed") as refused:
        play(run, FakeEngine(run, newest, renames="step-7"), run.adapters)
    assert refused.value.lie == "wrong version"


def test_version_that_changes_during_rollouts_is_refused(run_of: Runs) -> None:
    run = run_of(8, 2e-3)
    engine = FakeEngine(run, newest)
    guard = FreshnessGuard(engine, FakePolicy(run))
    engine.push("step-0", run.adapters[0])
    guard.check("step-0", run.batch(0))
    engine.name = "default"  # what vLLM claims after a restart
    with pytest.raises(StalePolicy, match="wrong version"):
        guard.remember("step-0", run.batch(0))


def test_movements_below_the_noise_add_up_until_they_decide(run_of: Runs) -> None:
    run = run_of(8, 1e-5)
    proven = [proof.proven for proof in play(run, FakeEngine(run, newest), run.adapters)]
    assert proven.count(False) > 3 and any(proven[4:])
    engine = FakeEngine(run, the_first)
    with pytest.raises(StalePolicy):
        play(run, engine, run.adapters)
    assert len(engine.pushed) < 6


def test_a_policy_that_never_moves_is_reported_and_never_refused(run_of: Runs) -> None:
    run = run_of(8, 2e-3)
    engine, policy, lines = FakeEngine(run, newest), FakePolicy(run), []
    guard = FreshnessGuard(engine, policy, GuardSettings(patience=3), lines.append)
    for step in range(7):
        engine.push(f"step-{step}", run.adapters[0])
        assert not guard.check(f"step-{step}", run.batch(0)).proven
        guard.remember(f"step-{step}", run.batch(step))
    assert guard.undecided == 7
    assert [line.split(":")[1].split()[0] for line in lines] == ["3", "6"]
    assert all("proved nothing" in line for line in lines)


def test_resumed_training_is_compared_with_the_base_first(run_of: Runs) -> None:
    run = run_of(8, 2e-3)
    assert play(run, FakeEngine(run, newest), run.adapters[6:])[0].proven
    with pytest.raises(StalePolicy, match="base policy"):
        play(run, FakeEngine(run, lambda _: run.adapters[0]), run.adapters[6:])
