"""The small version of `python -m benchmarks.pii`: floors just under what benchmarks/RESULTS.md states."""

from functools import cache
from typing import Any

import pytest

pytest.importorskip("faker", reason="Faker, of the extra `dev`, makes the labelled set")
from benchmarks.pii import measure

pytestmark = pytest.mark.slow


@cache
def measured() -> dict[str, Any]:
    return measure(per_cell=120, clean=300, seed=1)


FLOORS = {"e-mail": 1.0, "card": 0.94, "IBAN": 1.0, "SSN": 1.0, "RRN": 0.75, "IPv4": 1.0, "IPv6": 0.98}
FLOORS |= {"API key": 1.0, "AWS key": 1.0, "AWS secret": 0.98}
# In en_US 3-3-4 digits count where a word or a sign tells a telephone: else they may be what a question computes with.
PHONES = {"en_US": 0.84, "en_GB": 0.98, "de_DE": 0.92, "fr_FR": 0.92, "es_ES": 0.98, "nl_NL": 0.92, "pt_BR": 0.98}
PHONES |= {"ru_RU": 0.92, "ko_KR": 0.98, "ja_JP": 0.98, "zh_CN": 0.98, "en_IN": 0.7, "it_IT": 0.7, "pl_PL": 0.6}


@pytest.mark.parametrize("entity", FLOORS)
def test_recall_of_each_entity_in_every_locale(entity: str) -> None:
    assert {lo: share for lo, share in measured()["recall"][entity].items() if share < FLOORS[entity]} == {}


@pytest.mark.parametrize("locale", PHONES)
def test_recall_of_telephone_numbers(locale: str) -> None:
    assert measured()["recall"]["phone"][locale] >= PHONES[locale]


def test_text_without_personal_data_stays() -> None:
    kept = measured()["kept"]
    assert kept.pop("arithmetic") >= 0.95  # of numbers up to 10^22, one 13-digit number in ten passes Luhn
    assert {sort: share for sort, share in kept.items() if share < 0.98} == {}
