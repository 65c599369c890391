"""Estimates: the seed's example, what stretches them, what a budget forbids, and what a person reads."""

import pytest

from k8s.estimate import describe, estimate_launch, over_budget, prices
from k8s.hours import Range, expected_hours, model_hours
from pipeline.recipe import Accelerator, Checkpoints, Compute, Kubernetes, Recipe, load

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
    """Seed 002: 3 x 8 H200 for 4 to 6 hours at $10 to $15 each: $960 to $2,160; with about $50 for FSx and about $10
    for S3, $1,020 to $2,220. It names no size."""
    result = estimate_launch(compute(storage_gb=4800, storage_hours=54, bucket_gb=435), (4, 6), NEVER)
    devices, volume, bucket = result.parts
    assert (result.nodes, result.devices, result.device_hours.low, result.device_hours.high) == (3, 24, 96, 144)
    assert (devices.usd.low, devices.usd.high) == (960, 2160)
    assert volume.usd.high == pytest.approx(50, abs=1) and bucket.usd.high == pytest.approx(10, abs=1)
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
    for figure in ("960 to 2,160 USD", "24 devices", "4.00 to 6.00 hours", "2,000.00", "Raise it to 2160"):
        assert figure in value


@pytest.mark.parametrize(
    ("capacity", "fallback", "high"), [("spot", 0, 12), ("spot_first", 15, 15), ("on_demand", 9, 9)]
)
def test_a_price_that_varies_has_two_ends(capacity: str, fallback: float, high: float) -> None:
    varies = compute(capacity=capacity, fallback=fallback)
    varies = varies.model_copy(update={"accelerator": Accelerator(usd_per_hour=8, usd_per_hour_high=12)})
    assert prices(varies) == Range(low=9 if capacity == "on_demand" else 8, high=high)


GRPO_OF_32B = "jobs/recipes/spot_h200_grpo.yaml"


@pytest.mark.parametrize(
    ("overrides", "modelled", "low_s", "high_s", "words"),
    [
        (["training.grpo.steps=100"], 9.0, 1384 + 50 + 60, 2104 + 50 + 60, "100 steps of 13.84 to 21.04 s"),
        (["compute.expected.step_s=null"], 4.0, 7200 + 560, 28800 + 560, "4.00 hours by the cost model"),
        (["compute.expected.step_s=null", "training.timeout_s=3600"], 4.0, 3600, 3600, "by the cost model"),
        (["compute.expected.step_s=null"], None, 0, 43200, "nothing is known of it"),
    ],
)
def test_hours_are_measured_else_modelled_else_the_time_out(
    overrides: list[str], modelled: float | None, low_s: float, high_s: float, words: str
) -> None:
    recipe = load(GRPO_OF_32B, overrides)
    found = expected_hours(recipe, recipe.training.grpo, modelled)
    assert (found.hours.low * 3600, found.hours.high * 3600) == (pytest.approx(low_s), pytest.approx(high_s))
    assert words in found.basis


def test_the_cost_model_says_what_it_was_given() -> None:
    asked = ["compute.expected.step_s=null", "compute.expected.prompt_tokens=500"]
    text = model_hours(load(GRPO_OF_32B, asked)).basis
    assert "32.5 billion weights (compute.expected.parameters_b)" in text
    assert "prompts of 500 tokens (compute.expected.prompt_tokens)" in text
    assert "completions of 400 tokens (default)" in model_hours(load("jobs/recipes/own.yaml")).basis
    assert "(the model's folder)" in model_hours(load("jobs/recipes/embedded.yaml")).basis
    unknown = model_hours(load(GRPO_OF_32B, ["compute.expected.parameters_b=null"]))
    assert unknown.hours == {} and "is not here" in unknown.basis


def printed(recipe: Recipe, *hours: float) -> dict[str, str]:
    lines = describe(recipe, (hours[0], hours[1]) if hours else None).splitlines()
    return {line[2:16].strip(): line[16:] for line in lines[1:]} | {"title": lines[0]}


def test_what_a_person_reads() -> None:
    """Seed 002's table: hours, devices, the iteration and the year."""
    said = printed(load(GRPO_OF_32B, ["compute.budget_usd=2000"]))
    assert said["title"] == "spot_h200_grpo: 3 x p5en.48xlarge, 24 x H200"
    assert said["hours"].startswith("4.00 to 6.00; GRPO: 1,000 steps")
    assert said["devices"].startswith("960 to 2,160 USD; 24 devices (spot) at 10.00 to 15.00 USD an hour")
    assert said["an iteration"].startswith("1,020 to 2,220 USD")
    assert said["a year"].startswith("24,473 to 53,273 USD for 24 iterations")
    assert "Raise it to 2220" in said["budget"] and "interrupted" not in said
    assert said["at most"].startswith("12 hours")


def test_hours_that_somebody_measured_stand() -> None:
    said = printed(load("jobs/recipes/spot_h200_dpo.yaml"), 1.0, 2.0)
    assert said["hours"].startswith("1.00 to 2.00 (60 to 120 min); --hours")
    assert said["interrupted"].endswith("restarts of 300 s")
    assert printed(load("jobs/recipes/embedded.yaml"))["budget"].startswith("none is set")
    with pytest.raises(ValueError, match="the lower first"):
        describe(load("jobs/recipes/own.yaml"), (2.0, 1.0))
