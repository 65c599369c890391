"""Which iterations are not made anew: those whose models serve, or ever did."""

from pathlib import Path

import pytest

from jobs.retry import check_rollout
from tests.assets.laid import Laid


@pytest.mark.slow
def test_no_champion_s_iteration_is_made_anew(tmp_path: Path) -> None:
    """The first one back as little as the one that serves; what never served may be."""
    laid = Laid(tmp_path / "data")
    ends = (("a", "promoted"), ("b", "promoted"), ("c", "promoted"), ("d", "rolled_back"), ("e", "observing"))
    *champions, taken_back, running = (laid.roll_out(text, n, end, text) for n, (text, end) in enumerate(ends, 1))
    for iteration in (*champions, running):
        with pytest.raises(ValueError, match="is in the traffic or was promoted"):
            check_rollout(laid.store, iteration, "policy_checkpoint")
        check_rollout(laid.store, iteration, "canary")
    check_rollout(laid.store, taken_back, "policy_checkpoint")
