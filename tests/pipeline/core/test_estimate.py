"""The intervals against scipy."""

import pytest
from scipy.stats import binomtest

from pipeline.core.estimate import share


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 30), (30, 30), (7, 20), (813, 1319)])
def test_a_share_has_wilsons_interval(successes: int, n: int) -> None:
    expected = binomtest(successes, n).proportion_ci(method="wilson")
    result = share(successes, n)
    assert (result.low, result.high) == pytest.approx((expected.low, expected.high), abs=1e-12)
    assert result.low is not None and result.value is not None and result.high is not None
    assert 0 <= result.low <= result.value <= result.high <= 1


def test_a_share_of_nothing_is_unknown() -> None:
    assert str(share(0, 0)) == "unknown (n=0)"
