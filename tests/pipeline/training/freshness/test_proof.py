"""The arithmetic of the proof, on made-up log-probabilities."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.training.freshness import StalePolicy, prove_fresh
from pipeline.training.freshness.proof import BAND, FEWEST_PROBES, STANDS_OUT, ResidualLimits, StalePolicies

Rows = list[np.ndarray]


class World:
    """Log-probabilities of one set of probes under the base, the previous version and the policy; and `usual` noise."""

    def __init__(self, seed: int, probes: int, step: float, usual: float) -> None:
        self.dice, self.usual = np.random.default_rng(seed), usual
        self.lengths = self.dice.integers(4, 40, probes)
        self.base = [-self.dice.exponential(0.5, n) for n in self.lengths]
        self.previous = self.moved(self.base, 3 * step)
        self.policy = self.moved(self.previous, step)

    def moved(self, rows: Rows, size: float) -> Rows:
        """Heavy-tailed, as movements are: most tokens hardly, a few by much."""
        return [row + size * self.dice.standard_t(3, len(row)) for row in rows]

    def noisy(self, rows: Rows) -> Rows:
        return [row + self.usual * self.dice.standard_t(3, len(row)) for row in rows]

    def prove(self, engine: Rows, noise: float | None = None, **known: Rows):
        known = known or {"base": self.base, "previous": self.previous}
        lists = {name: [row.tolist() for row in rows] for name, rows in known.items()}
        policy, told = [row.tolist() for row in self.policy], [row.tolist() for row in engine]
        return prove_fresh("v2", "v2", told, policy, StalePolicies(**lists), ResidualLimits(noise))


worlds = st.builds(
    World,
    seed=st.integers(0, 2**32 - 1),
    probes=st.integers(FEWEST_PROBES, 40),
    step=st.floats(1e-5, 0.1),
    usual=st.floats(1e-6, 0.02),
)
clear = st.builds(
    World,
    seed=st.integers(0, 2**32 - 1),
    probes=st.integers(24, 40),
    step=st.floats(0.01, 0.1),
    usual=st.floats(1e-6, 0.001),
)


@given(worlds, st.booleans())
def test_an_engine_with_nothing_but_noise_is_never_refused(world: World, known: bool) -> None:
    world.prove(world.noisy(world.policy), noise=1.1 * world.usual if known else None)


@given(worlds, st.floats(0, 1))
def test_no_direction_of_usual_noise_is_refused(world: World, lost: float) -> None:
    """Rounding may swallow a small update, all of it in one direction: that is noise, not another version."""
    gap = np.concatenate(world.policy) - np.concatenate(world.previous)
    engine = [p - lost * (p - q) for p, q in zip(world.policy, world.previous, strict=True)]
    world.prove(engine, noise=1.01 * lost * float(np.abs(gap).mean()) / STANDS_OUT + 1e-9, previous=world.previous)


@given(clear, st.sampled_from(["base", "previous"]), st.booleans())
def test_an_old_version_is_refused_by_its_name(world: World, old: str, known: bool) -> None:
    with pytest.raises(StalePolicy) as refused:
        world.prove(world.noisy(getattr(world, old)), noise=world.usual if known else None)
    assert refused.value.lie == {"base": "base policy", "previous": "stale adapter"}[old]


@given(clear, st.floats(0.1, 1 - BAND - 0.1) | st.floats(1 + BAND + 0.1, 3))
def test_a_scaled_adapter_is_refused(world: World, scale: float) -> None:
    engine = [b + scale * (p - b) for p, b in zip(world.policy, world.base, strict=True)]
    with pytest.raises(StalePolicy):
        world.prove(world.noisy(engine), noise=world.usual)


@given(clear)
def test_a_fresh_engine_is_proven_where_it_can_be(world: World) -> None:
    proof = world.prove(world.noisy(world.policy), noise=world.usual)
    assert proof.proven
    assert proof.since_base is not None and abs(proof.since_base.share - 1) < BAND


@given(worlds, st.randoms())
def test_the_order_of_the_probes_does_not_matter(world: World, dice) -> None:
    engine = world.noisy(world.policy)
    order = list(range(len(engine)))
    dice.shuffle(order)
    straight = world.prove(engine)
    world.base, world.previous, world.policy, engine = (
        [rows[n] for n in order] for rows in (world.base, world.previous, world.policy, engine)
    )
    shuffled = world.prove(engine)
    assert shuffled.residual == pytest.approx(straight.residual)
    assert shuffled.since_previous.share == pytest.approx(straight.since_previous.share, rel=1e-6)  # type: ignore[union-attr]


def test_other_weights_are_refused_by_their_distance() -> None:
    world = World(0, 16, 0.0, 0.3)
    with pytest.raises(StalePolicy, match="nats a token lie between engine and policy") as refused:
        world.prove(world.noisy(world.policy))
    assert refused.value.lie == "other weights"


def test_without_an_old_version_nothing_is_proven() -> None:
    world = World(0, 16, 0.05, 0.001)
    proof = prove_fresh("v", "v", world.noisy(world.policy), world.policy)  # type: ignore[arg-type]
    assert not proof.proven and proof.since_base is None and proof.residual < 0.002


def test_too_few_probes_prove_nothing() -> None:
    world = World(0, FEWEST_PROBES - 1, 0.05, 0.001)
    assert not world.prove(world.noisy(world.previous)).proven


def test_equal_versions_prove_nothing() -> None:
    world = World(0, 16, 0.05, 0.001)
    world.previous = world.base = world.policy
    assert not world.prove(world.noisy(world.policy)).proven


@pytest.mark.parametrize("bad", [math.nan, -math.inf])
def test_a_number_that_is_none_is_the_engines_fault(bad: float) -> None:
    world = World(0, 16, 0.05, 0.001)
    engine = world.noisy(world.policy)
    engine[3][0] = bad
    with pytest.raises(StalePolicy, match=r"1 of .* no finite numbers"):
        world.prove(engine)


def test_a_policy_without_numbers_is_not() -> None:
    world = World(0, 16, 0.05, 0.001)
    world.policy = [np.full(len(row), math.nan) for row in world.policy]
    assert not world.prove(world.policy).proven


def test_other_tokens_than_the_policys_are_a_mistake_of_ours() -> None:
    with pytest.raises(ValueError, match="scored 2 tokens of 1 probes, the policy 3 of 1: ask"):
        prove_fresh("v", "v", [[-1.0, -1.0]], [[-1.0, -1.0, -1.0]])


def test_another_version_is_refused_before_anything_is_compared() -> None:
    with pytest.raises(StalePolicy, match="wrong version: the engine claims 'step-1' where 'step-2' was pushed"):
        prove_fresh("step-2", "step-1", [], [])
