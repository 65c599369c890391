"""The plots of the reward model: what was measured, and a sentence where nothing was."""

import pytest

from pipeline.core.estimate import UNKNOWN, share
from pipeline.rewards.reward_model.measures import calibration
from pipeline.rewards.reward_model.records import ProbeResult, RewardModelReport
from pipeline.views import reward_model

EMPTY = RewardModelReport(iteration="it", reason="not trained: 5 thumbs")
ERROR, BINS = calibration([0.05, 0.31, 0.33, 0.72, 1.0], [False, True, False, True, True])
REPORT = RewardModelReport(
    iteration="it",
    calibration_error=ERROR,
    calibration=BINS,
    probes=(
        ProbeResult(name="voucher", kind="append", ordered_right=share(60, 60), passes=True),
        ProbeResult(name="fact", kind="swap", ordered_right=share(24, 60), passes=False),
        ProbeResult(name="none", kind="swap", ordered_right=UNKNOWN, passes=False),
    ),
)


@pytest.mark.parametrize("plot", [reward_model.calibration, reward_model.probes])
def test_a_report_is_drawn_and_none_says_so(plot) -> None:
    pictures = [plot(EMPTY), plot(REPORT)]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    assert len(pictures[1]) > 2 * len(pictures[0]), "axes, not a sentence"
    assert plot(REPORT) == pictures[1]
