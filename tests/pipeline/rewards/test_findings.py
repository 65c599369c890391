from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.removal import make
from pipeline.core.storage import Store
from pipeline.rewards.findings import FindingLine, drop_days, journal, key_of, known, removals, settled, spent

DAY, NEXT = "2026-01-05", "2026-01-06"
TEXTS = st.lists(st.text(), max_size=4)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def line(key: str, user: str | None = "ann", **fields: object) -> FindingLine:
    return FindingLine(**{"key": key, "source": "judge", "account": "i", "owner": user, **fields})  # type: ignore[arg-type]


@given(TEXTS, TEXTS)
def test_different_questions_have_different_keys(one: list[str], other: list[str]) -> None:
    assert (key_of(*one) == key_of(*other)) == (one == other)


def test_what_was_noted_is_known_again(store: Store) -> None:
    first, second = line("a", value=0.5, tokens=7), line("b", reason="judge_malformed")
    for each in (first, second, line("c", source="verifier")):
        journal(store, DAY).add(each)
    assert known(store, DAY, {"a", "b", "d"}) == {"a": first, "b": second}
    assert known(store, NEXT, {"a"}) == {}
    assert settled(store, DAY).keys() == settled(store).keys() == {"a", "b"}, "no verifier is a paid judge"


def test_findings_sum_costs_over_attempts(store: Store) -> None:
    journal(store, DAY).add(line("a", tokens=3, usd=0.5), line("b", tokens=4, usd=0.25, again=True))
    journal(store, DAY).add(line("c", tokens=100, account="other"), line("d", tokens=100, source="admission"))
    journal(store, NEXT).add(line("e", tokens=5))
    total = spent(store, "i")
    assert (total.tokens, total.usd) == (112, 0.75)


def test_forgetting_takes_a_users_findings_and_no_others(store: Store) -> None:
    journal(store, DAY).add(line("a"), line("b", "bob"), line("c", None))
    journal(store, NEXT).add(line("d"))
    assert [each.split(": ")[1] for each in make(removals(store, {"ann"}))] == ["1 lines", "1 lines"]
    assert settled(store).keys() == {"b", "c"}
    drop_days(store, [DAY, "2026-01-07"])
    assert settled(store) == {}
