"""Estimates: the seed's example, what stretches them, what a budget forbids, and what a person reads."""

import pytest

from k8s.estimate import describe, estimate_launch, expected_hours, over_budget, prices
from pipeline.recipe import Accelerator, Checkpoints, Compute, Kubernetes, load
from pipeline.selection.cost import MethodCost

IMAGE = f"registry.example/trainer@sha256:{'0' * 64}"
NEVER, THRICE = Checkpoints(), Checkpoints(interruption_every_s=6000)
"""The pool's interruptions: none, and three in five hours."""


def compute(first: float = 10.0, fallback: float = 15.0, budget: float | None = None, **placed: object) -> Compute:
    """Three p5en.48xlarge, as seed 002 has them."""
    placed = {"image": IMAGE, "capacity": "spot_first", "on_demand_usd_per_hour": fallback} | placed
    return Compute(
        nodes=3,
        processes=8,
        accelerator=Accelerator(usd_per_hour=first),
        kubernetes=Kubernetes.model_validate(placed),
        budget_usd=budget,
    )


def test_the_seeds_example_comes_out_in_its_range() -> None:
    """Seed 002: 3 x 8 H200 for 4 to 6 hours at $10 to $15 each: $960 to $2,160; with about $50 for a month of FSx and
    about $10 for S3, $1,020 to $2,220. It names no size: 370 GB are $52 and $8.5."""
    mirrored = Checkpoints(mirror="s3://training-data-lake/checkpoints")
    result = estimate_launch(compute(storage_gb=370), (4, 6), mirrored, kept_hours=730)
    devices, volume, copies = result.parts
    assert (result.nodes, result.devices, result.device_hours.low, result.device_hours.high) == (3, 24, 96, 144)
    assert (devices.usd.low, devices.usd.high) == (960, 2160)
    assert volume.usd.high == pytest.approx(50, abs=5) and copies.usd.high == pytest.approx(10, abs=2)
    assert (result.usd.low, result.usd.high) == (pytest.approx(1020, abs=2), pytest.approx(2220, abs=2))


@pytest.mark.parametrize(
    ("capacity", "fallback", "low", "high"),
    [
        ("spot", 15.0, 10, 10),
        ("spot_first", 15.0, 10, 15),
        ("spot_first", 0.0, 10, 10),
        ("spot_first", 8.0, 8, 10),
        ("on_demand", 15.0, 15, 15),
        ("on_demand", 0.0, 10, 10),
    ],
)
def test_prices_are_those_of_the_capacity_asked_for(capacity: str, fallback: float, low: float, high: float) -> None:
    result = prices(compute(fallback=fallback, capacity=capacity))
    assert (result.low, result.high) == (low, high)


@pytest.mark.parametrize("every_s", [60.0, 1.0])
def test_what_does_not_end_is_refused_by_any_budget(every_s: float) -> None:
    result = estimate_launch(compute(), (0.5, 24.0), Checkpoints(interruption_every_s=every_s))
    assert not result.ends and result.hours.high == 120
    assert "interrupted" in over_budget(result, 1e9)
    assert over_budget(result, None) == ""


def test_a_budget_is_held_against_the_high_end() -> None:
    result = estimate_launch(compute(), (4, 6), NEVER)
    assert [over_budget(result, budget) == "" for budget in (None, 2160.0, 2159.99, 961.0)] == [
        True,
        True,
        False,
        False,
    ]
    value = over_budget(result, 2000.0)
    for figure in ("960 to 2,160 USD", "24 devices", "4.00 to 6.00 hours", "2,000.00", "Raise it to 2,160"):
        assert figure in value


def test_estimate_allows_for_a_factor_and_ends_at_the_timeout() -> None:
    expected = MethodCost.model_construct(hours=4.0)
    assert expected_hours(expected, timeout_s=6 * 3600) == (2, 6)
    assert expected_hours(expected, timeout_s=3600) == (1, 1)


def test_what_a_person_reads() -> None:
    recipe = load("jobs/recipes/spot_h200_dpo.yaml")
    recipe = recipe.model_copy(update={"compute": compute(budget=2000.0, storage_gb=1200)})
    said = describe(recipe)
    assert said.splitlines()[0] == "spot_h200_dpo: 3 x p5en.48xlarge, 24 x H200"
    for value in ("240 to 360 USD", "168.00 USD a month", "training.timeout_s (12 hours)", "2,000.00 USD: 5.6 hours"):
        assert value in said
    assert "none is set" in describe(load("jobs/recipes/embedded.yaml"))
