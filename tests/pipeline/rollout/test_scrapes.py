import pytest

from pipeline.rollout.evidence import Uncountable
from pipeline.rollout.scrapes import Scrapes, Series, increase

EVERY_S = 15.0


def series(*points, instance="a", **labels):
    times, values = zip(*points, strict=True)
    return Series({"job": "vllm", "instance": instance, **labels}, times, values)


def risen(counter, since, until, *others):
    return increase(counter, Scrapes.seen([counter, *others], EVERY_S), since, until)


COUNTER = series((0, 5.0), (15, 7.0), (45, 20.0), (60, 21.0), (120, 90.0))


def test_windows_that_follow_each_other_add_up():
    for cut in (0, 1, 15, 16, 44, 45, 50, 60, 119, 120):
        assert risen(COUNTER, 0, cut) + risen(COUNTER, cut, 120) == 85, cut
    assert risen(COUNTER, 10, 40) == 13, "from the first scrape in it to the first at its end"
    assert risen(COUNTER, 121, 130) == 0, "a server that is gone"


def test_a_counter_that_fell_began_at_0():
    fallen = series((0, 50.0), (15, 60.0), (30, 4.0), (45, 9.0))
    assert risen(fallen, 0, 45) == 19


def test_a_fall_over_a_gap_cannot_be_counted():
    fallen = series((0, 50.0), (15, 60.0), (46, 4.0), (60, 9.0))
    with pytest.raises(Uncountable, match="a started again within 31 s in which it was not scraped"):
        risen(fallen, 0, 60)
    assert risen(fallen, 46, 60) == 5, "a window after it can"
    assert risen(series((0, 50.0), (15, 60.0), (45, 4.0)), 0, 45) == 14, "one missed scrape is no gap"


def test_a_series_that_appears_began_at_0():
    """As a label does that was never counted: its server's other series say that it was scraped before."""
    late, other = series((30, 3.0), (45, 8.0), reason="length"), series((0, 1.0), (15, 1.0), (30, 1.0), (45, 1.0))
    assert risen(late, 0, 45, other) == 8
    assert risen(late, 0, 45) == 5, "a server that was not scraped before may have counted long ago"
    assert risen(late, 0, 45, series((0, 1.0), instance="b")) == 5, "nor does another one say so"


def test_a_window_ends_where_every_server_is_known():
    scrapes = Scrapes.seen([COUNTER, series((10, 1.0), (40, 2.0), (100, 3.0), instance="b")], EVERY_S)
    assert (scrapes.complete_until, scrapes.newest, scrapes.counted_from(1)) == (100, 120, 15)
    assert list(scrapes.fresh(101).of) == [("vllm", "a")]
    assert scrapes.covers(0, 100) and not scrapes.covers(61, 61)
    assert not Scrapes.seen([series((10, 1.0))], EVERY_S).covers(0, 100)
