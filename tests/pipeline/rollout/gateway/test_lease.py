"""How long a gateway routes by a split that nobody renews, whatever the clocks say."""

import pytest

from pipeline.core.storage import Store
from pipeline.rollout.gateway import tables
from pipeline.rollout.gateway.tables import SplitWatch, write_split
from tests.pipeline.rollout.conftest import NAME, split_at

DAY_S = 86_400.0


class Clocks:
    """The gateway's two clocks: the wall's, which may be wrong, and the steady one."""

    def __init__(self) -> None:
        self.wall, self.steady = 1000.0, 50.0

    def pass_s(self, seconds: float) -> None:
        self.wall += seconds
        self.steady += seconds


@pytest.fixture
def clocks(monkeypatch: pytest.MonkeyPatch) -> Clocks:
    clocks = Clocks()
    monkeypatch.setattr(tables.time, "time", lambda: clocks.wall)
    monkeypatch.setattr(tables.time, "monotonic", lambda: clocks.steady)
    return clocks


@pytest.fixture
def watch(tmp_path, clocks: Clocks) -> SplitWatch:
    return SplitWatch(Store(tmp_path), NAME, lambda digest: True)


def granted(tmp_path, expires_at: float, lease_s: float | None = 100.0, epoch: int = 1) -> None:
    split = split_at(50, epoch).model_copy(update={"expires_at": expires_at, "lease_s": lease_s})
    write_split(Store(tmp_path), NAME, split)


def weight(watch: SplitWatch) -> int:
    split = watch.in_force()
    assert split is not None
    return split.canary_weight


@pytest.mark.parametrize("ahead_s", [0.0, 50.0, DAY_S])
def test_a_lease_of_a_clock_that_was_ahead_ends(tmp_path, clocks, watch, ahead_s):
    granted(tmp_path, clocks.wall + ahead_s + 100.0)
    assert weight(watch) == 50
    clocks.pass_s(99.0)
    assert weight(watch) == 50
    clocks.pass_s(2.0)
    assert weight(watch) == 0 and watch.expired


def test_a_gateway_whose_clock_goes_back_ends_the_lease(tmp_path, clocks, watch):
    granted(tmp_path, clocks.wall + 100.0)
    assert weight(watch) == 50
    clocks.wall -= DAY_S
    clocks.pass_s(101.0)
    assert weight(watch) == 0


def test_a_lease_that_is_renewed_goes_on(tmp_path, clocks, watch):
    for number in range(5):
        granted(tmp_path, clocks.wall + 100.0, epoch=1 + number)
        assert weight(watch) == 50
        clocks.pass_s(90.0)
        assert weight(watch) == 50


def test_a_champion_alone_needs_no_lease(tmp_path, clocks, watch):
    write_split(Store(tmp_path), NAME, split_at(0).model_copy(update={"expires_at": clocks.wall + 1.0, "lease_s": 1.0}))
    clocks.pass_s(2.0)
    assert weight(watch) == 0 and not watch.expired


def test_slots_that_change_do_not_renew_a_lease(tmp_path, clocks, watch):
    granted(tmp_path, clocks.wall + DAY_S)
    assert weight(watch) == 50
    clocks.pass_s(60.0)
    watch.reload()
    assert weight(watch) == 50
    clocks.pass_s(60.0)
    assert weight(watch) == 0


def test_a_gateway_that_starts_late_ends_it_by_the_wall(tmp_path, clocks, watch):
    granted(tmp_path, clocks.wall + 100.0)
    clocks.pass_s(101.0)
    assert weight(watch) == 0, "it never saw the lease begin"


def test_a_split_of_before_has_the_walls_lease_alone(tmp_path, clocks, watch):
    granted(tmp_path, clocks.wall + 100.0, lease_s=None)
    assert weight(watch) == 50
    clocks.pass_s(99.0)
    assert weight(watch) == 50
    clocks.pass_s(2.0)
    assert weight(watch) == 0
