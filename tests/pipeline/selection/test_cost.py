"""Expected cost against published step times, expected zero variance against draws, weights counted from headers."""

import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.estimate import UNKNOWN, share
from pipeline.recipe import Accelerator, Training
from pipeline.recipe.methods import DPO, GRPO
from pipeline.selection.cost import MIN_TRIED_TWICE, device_hours_of, parameters, zero_variance
from pipeline.selection.evidence import PromptAttempts, measure

from .test_choose import GOOD
from .test_evidence import SETTINGS, row

DEMO = Path(__file__).parents[3] / "pipeline" / "demo" / "model"


@pytest.mark.parametrize(
    ("weights", "settings", "tokens", "accelerator", "devices", "hours"),
    [
        # seed 000: 7B on 2 x p4d; 23.4 s generation and 18.6 s training a step; its lengths are not told
        (7e9, {"steps": 100, "prompts_per_step": 32, "num_generations": 16, "beta": 0.01}, (128, 256),
         Accelerator(name="A100", peak_tflops=312), 16, 100 * 42.0 / 3600),
        # seed 003: 8B on 16 B200; 39.1 s generation, 16.9 s training and 7.7 s log-probabilities a step of 122.9 s
        (8e9, {"steps": 100, "prompts_per_step": 64, "num_generations": 32, "beta": 0.01}, (100, 903),
         Accelerator(name="B200", peak_tflops=2250), 16, 100 * 63.7 / 3600),
        # seed 002: 32B on 3 x p5en, 1,000 iterations of 32 prompts in 4 to 6 h; groups and lengths are not told
        (32e9, {"steps": 1000, "prompts_per_step": 32, "num_generations": 8, "beta": 0.1}, (256, 512),
         Accelerator(), 24, 5.0),
    ],
    ids=["7B on A100", "8B on B200", "32B on H200"],
)  # fmt: skip
def test_grpo_hours_are_within_a_factor_three_of_published(
    weights: float,
    settings: dict[str, float],
    tokens: tuple[float, float],
    accelerator: Accelerator,
    devices: int,
    hours: float,
) -> None:
    training = Training(grpo=GRPO.model_validate({**settings, "max_completion_tokens": 1024}))
    found = device_hours_of(training.grpo.flops(*tokens), weights, accelerator)
    assert hours / 3 < found / devices < hours * 3


def test_hours_follow_from_lengths_and_settings() -> None:
    methods = (GRPO(steps=10, prompts_per_step=4, num_generations=8, max_completion_tokens=100),
               DPO(steps=5, batch_size=2))  # fmt: skip
    grpo, dpo = (device_hours_of(method.flops(50, 200), 1e9, Accelerator()) for method in methods)
    # 320 completions: 2 operations a token generated, at a tenth of the utilisation, and 8 a token trained
    assert grpo == pytest.approx(320 * (20 * 100 + 8 * 150) * 1e9 / (0.3 * 989e12) / 3600)
    # 8 operations a parameter and trained token, at 30% of 989 TFLOPS
    assert dpo == pytest.approx(8 * 5000 * 1e9 / (0.3 * 989e12) / 3600)


@pytest.mark.parametrize("tries", [2, 4])
@pytest.mark.parametrize(("a", "b"), [(1.0, 1.0), (0.3, 0.7), (8.0, 2.0)])
def test_expected_zero_variance_is_what_fresh_groups_show(a: float, b: float, tries: int) -> None:
    dice = random.Random(f"{a} {b} {tries}")
    chances = [dice.betavariate(a, b) for _ in range(1000)]
    rows = [
        row(f"{p:04}", str(i), correct=float(dice.random() < chance))
        for p, chance in enumerate(chances)
        for i in range(tries)
    ]
    evidence = measure(rows, [], UNKNOWN, SETTINGS.model_copy(update={"curriculum_attempts": 5}))
    assert evidence.frontier_prompts == 1000
    for generations in (2, 8, 16):
        expected = zero_variance(evidence, generations)
        truth = sum(c**generations + (1 - c) ** generations for c in chances) / len(chances)
        assert expected.low is not None
        assert expected.high is not None
        assert expected.low <= truth <= expected.high
        assert expected.high - expected.low < 0.2


tables = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4), st.integers(1, 99)), min_size=1, max_size=6)


@given(tables)
def test_larger_groups_are_flat_less_often(drawn: list[tuple[int, int, int]]) -> None:
    attempts = tuple(PromptAttempts(right, right + wrong, prompts, True) for right, wrong, prompts in drawn)
    total = sum(each.prompts for each in attempts)
    evidence = GOOD.model_copy(update={"attempts": attempts, "frontier_prompts": total})
    found = [zero_variance(evidence, n) for n in (2, 4, 8, 16, 64)]
    if sum(each.prompts for each in attempts if each.of > 1) < MIN_TRIED_TWICE:
        assert {each.value for each in found} == {None}, "nobody knows whether answers to one prompt differ"
        return
    assert all(each.n == total for each in found)
    values = [each.value or 0.0 for each in found]
    assert all(0 <= later <= earlier + 1e-9 <= 1 + 1e-6 for earlier, later in pairwise(values))


def test_parameters_are_counted_from_headers() -> None:
    from safetensors import safe_open

    with safe_open(DEMO / "model.safetensors", framework="numpy") as tensors:
        counted = sum(tensors.get_tensor(name).size for name in tensors.keys())  # noqa: SIM118
    assert parameters(DEMO) == counted


def test_what_few_attempts_leave_open_widens_the_interval() -> None:
    attempts = (PromptAttempts(0, 2, 40, True), PromptAttempts(1, 2, 320, True), PromptAttempts(2, 2, 640, True))
    found = zero_variance(GOOD.model_copy(update={"attempts": attempts, "frontier_prompts": 1000}), 8)
    as_if_known = share(1000 * (found.value or 0.0), 1000)
    assert (found.low or 0.0) < (as_if_known.low or 0.0) - 0.01
    assert (found.high or 0.0) > (as_if_known.high or 0.0) + 0.01


def test_single_attempts_say_nothing_of_zero_variance() -> None:
    """A thousand prompts asked once, all wrong or all right, teach GRPO nothing, and no prior may say otherwise."""
    for right in (0, 1):
        evidence = GOOD.model_copy(
            update={"attempts": (PromptAttempts(right, 1, 1000, True),), "frontier_prompts": 1000}
        )
        assert zero_variance(evidence, 8).value is None
