"""Rates against published figures, and against sums that were done by hand."""

import pytest

from pipeline.training.account import typical
from pipeline.training.rates import Shape, Tokens, step_rates

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


def test_a_steps_seconds_are_those_of_its_share_of_a_batch() -> None:
    shared = [  # one step in four draws the batch of generation for all of them
        {"step": float(n + 1), "seconds/step": 10.0 if n % 4 == 0 else 1.0}
        | ({"seconds/generate": 9.0} if n % 4 == 0 else {})
        for n in range(12)
    ]
    assert typical(shared)["seconds/step"] == pytest.approx(13 / 4)
    rows_of_batches = [{"step": 4.0 * n, "seconds/step": 80.0, "seconds/generate": 40.0} for n in range(1, 4)]
    assert typical(rows_of_batches)["seconds/step"] == pytest.approx(20)
