"""Timestamps as they are logged: ISO with T or space, any zone and precision; epochs in s, ms, us or ns; e-mail dates.
A day is never guessed before a month."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from email.utils import parsedate_to_datetime
from typing import Any

import msgspec

EPOCH = datetime(1970, 1, 1)
UNITS = ((10**11, 1), (10**14, 10**3), (10**17, 10**6), (10**20, 10**9))
"""An epoch below the first number is in units of which the second is one second: 10^11 s is the year 5138."""
_NUMBER = re.compile(r"[+-]?\d+(\.\d*)?")
_DAY = re.compile(r"\d{8}")
_COMPACT = re.compile(r"\d{14}")
_FRACTION = re.compile(r"([.,]\d{6})\d+")


def utc(value: Any) -> datetime:
    """The time that is meant, in UTC and without a zone, to the microsecond.

    Raises msgspec.ValidationError, which does not repeat the value.
    """
    try:
        return _plain(_read(value))
    except (ValueError, OverflowError, TypeError) as error:
        raise msgspec.ValidationError("a timestamp is in no format that can be read") from error


def utc_or_none(value: Any) -> datetime | None:
    """None for null and empty text: the source does not say."""
    return None if value is None or value == "" else utc(value)


def day_of(value: Any) -> str | None:
    """YYYY-MM-DD in UTC, or None where the time cannot be read."""
    try:
        return utc(value).date().isoformat()
    except msgspec.ValidationError:
        return None


def _read(value: Any) -> datetime:
    if isinstance(value, datetime):
        return value
    if isinstance(value, (int, float, Decimal)) and not isinstance(value, bool):
        return _of_epoch(Decimal(str(value)))
    if not isinstance(value, str):
        raise TypeError
    try:
        return msgspec.convert(value, datetime)
    except msgspec.ValidationError:
        return _of_text(value.strip())


def _of_text(text: str) -> datetime:
    if _COMPACT.fullmatch(text):
        return datetime.strptime(text, "%Y%m%d%H%M%S")
    if _NUMBER.fullmatch(text) and not _DAY.fullmatch(text):
        return _of_epoch(Decimal(text))
    iso = _FRACTION.sub(r"\1", text).replace("/", "-")
    iso = re.sub(r"\s*(UTC|GMT|[zZ])$", "+00:00", iso)
    iso = re.sub(r"\s+(?=[+-]\d\d:?\d\d$)", "", iso)
    try:
        return datetime.fromisoformat(iso)
    except ValueError:
        return parsedate_to_datetime(text)


def _of_epoch(number: Decimal) -> datetime:
    if not number.is_finite():
        raise ValueError
    size = abs(number)
    for limit, per_second in UNITS:
        if size < limit:
            return EPOCH + timedelta(microseconds=int(number * 10**6 / per_second))
    raise ValueError


def _plain(moment: datetime) -> datetime:
    if moment.tzinfo is not None:
        moment = moment.astimezone(UTC).replace(tzinfo=None)
    return moment if type(moment) is datetime else datetime.combine(moment.date(), moment.time())
