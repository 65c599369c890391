"""The small version of `python -m benchmarks.gateway`: what must hold on any machine."""

import pytest

from benchmarks.gateway import measure


@pytest.mark.variant
@pytest.mark.slow
def test_gateway_keeps_its_promises_under_disturbance() -> None:
    pytest.importorskip("openai", reason="OpenAI's client, which callers use")
    figures = measure(small=True)
    assert (figures["errors_with_default_retries"], figures["users_on_both_arms"], figures["unrecorded"]) == (0, 0, 0)
    assert figures["split_z"] <= 3 and figures["answers"] > 0
