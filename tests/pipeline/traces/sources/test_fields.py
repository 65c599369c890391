from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.traces.sources.fields import day_of, utc

MOMENT = datetime(2026, 1, 5, 10, 0, 1)


@pytest.mark.parametrize(
    ("value", "microseconds"),
    [
        ("2026-01-05 10:00:01", 0),
        ("2026-01-05 10:00:01.123456", 123456),
        ("2026-01-05 10:00:01.123456789", 123457),
        ("2026-01-05T10:00:01.123Z", 123000),
        ("2026-01-05T19:00:01+09:00", 0),
        ("2026-01-05T19:00:01+0900", 0),
        ("2026-01-05 10:00:01.5+00", 500000),
        ("2026-01-05T10:00:01,123456789Z", 123456),
        ("2026-01-05 10:00:01 UTC", 0),
        ("20260105T100001Z", 0),
        (1767607201, 0),
        (1767607201.5, 500000),
        ("1767607201.5", 500000),
        (1767607201123, 123000),
        ("1767607201123456", 123456),
        (1767607201123456789, 123456),
        (MOMENT.replace(tzinfo=UTC), 0),
        (datetime(2026, 1, 5, 19, 0, 1, tzinfo=timezone(timedelta(hours=9))), 0),
    ],
)
def test_a_timestamp_is_read(value: Any, microseconds: int) -> None:
    assert utc(value) == MOMENT.replace(microsecond=microseconds)


def test_a_date_is_its_beginning() -> None:
    assert utc("2026-01-05") == utc("20260105") == datetime(2026, 1, 5)


@pytest.mark.parametrize(
    "value",
    ["", "soon", "2026-13-01", "05/01/2026", "infinity", "NaN", float("nan"), float("inf"), 10**30, True, None, [], {}],
)
def test_what_is_no_time_is_refused_without_a_word_of_it(value: Any) -> None:
    with pytest.raises(msgspec.ValidationError, match=r"^a timestamp is in no format that can be read$"):
        utc(value)
    assert day_of(value) is None


@given(st.datetimes(min_value=datetime(2001, 10, 1), max_value=datetime(2200, 1, 1)))
def test_every_way_to_write_a_moment_means_it(moment: datetime) -> None:
    stamp = (moment - datetime(1970, 1, 1)) // timedelta(microseconds=1)
    for written in (moment.isoformat(" "), moment.isoformat() + "Z", stamp, str(stamp * 1000), f"{stamp / 10**6:.6f}"):
        assert utc(written) == moment
