"""Simulated labelled sets at a size that takes seconds: that they are what they say, and where the rule flips."""

from __future__ import annotations

import pytest

from benchmarks.selection import SWEEPS, coverage, run, sweep
from benchmarks.selection_data import World, simulate, true_noise
from pipeline.recipe import Selection
from pipeline.selection.pairing import by_prompt, pairs


def test_a_world_is_as_it_was_asked_for() -> None:
    world = World(prompts=2000, noise=0.3, verifiable=0.6, rated=0.5, solved=0.3)
    result = simulate(world, seed=1)
    assert result == simulate(world, seed=1)
    assert result != simulate(world, seed=2)
    assert len(result.rows) == 8000
    share = {
        "verifiable": sum(row.reference is not None for row in result.rows) / 8000,
        "rated": sum(row.feedback is not None for row in result.rows) / 8000,
        "solved": sum(result.good.values()) / 8000,
    }
    heard = [(row.feedback > 0.5, result.good[row.trace_id]) for row in result.rows if row.feedback is not None]
    share["noise"] = sum(says != truth for says, truth in heard) / len(heard)
    assert share == pytest.approx({name: getattr(world, name) for name in share}, abs=0.03)
    verified = [(row.correct, result.good[row.trace_id]) for row in result.rows if row.correct is not None]
    assert all(correct == good for correct, good in verified)


def test_the_truth_about_pairs() -> None:
    clean, noisy = (simulate(World(prompts=300, verifiable=0.0, noise=noise), seed=1) for noise in (0.0, 0.5))
    assert true_noise(pairs(by_prompt(clean.rows), Selection()), clean.good) == 0.0
    assert true_noise(pairs(by_prompt(noisy.rows), Selection()), noisy.good) == pytest.approx(0.5, abs=0.1)
    assert true_noise([], {}) == 0.0


@pytest.mark.parametrize(
    ("world", "method"),
    [
        (World(prompts=500), "grpo"),
        (World(prompts=500, noise=0.4), "grpo"),
        (World(prompts=1500, verifiable=0.3, noise=0.05), "dpo"),
        (World(prompts=1500, verifiable=0.3, noise=0.4), "none"),
        (World(prompts=100), "none"),
        (World(prompts=500, diversity=0.0), "none"),
        (World(prompts=1500, verifiable=0.0), "none"),
    ],
)
def test_where_the_rule_flips(world: World, method: str) -> None:
    assert run(world, seed=1).decision.method == method


@pytest.mark.slow
def test_more_noise_and_less_data_never_bring_dpo_back() -> None:
    world = World(prompts=1200, verifiable=0.3)
    taken = [run(world._replace(noise=noise), seed=3).decision.method for noise in (0.0, 0.1, 0.2, 0.3, 0.4)]
    assert taken == sorted(taken), "dpo first, then none for good"
    assert {"dpo", "none"} == set(taken)


def test_a_table_has_a_line_for_each_value() -> None:
    small = SWEEPS[0]._replace(values=(0.0, 0.4), world=World(prompts=200))
    lines, taken = sweep(small, runs=2, seed=1)
    assert len(lines) == 4
    assert list(taken) == ["0", "0.4"]
    assert all(sum(counts.values()) == 2 for counts in taken.values())


@pytest.mark.variant
@pytest.mark.slow
def test_intervals_cover_the_truth_in_most_sets() -> None:
    for name, result in coverage(runs=1, seed=5, sizes=(300,)).items():
        assert result["covers"] >= 0.85, name
        assert name == "noise_by_people" or abs(result["bias"]) < 0.05, name
