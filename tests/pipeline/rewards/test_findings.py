from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.core.removal import make
from pipeline.core.storage import Store
from pipeline.rewards.findings import JournalLine, drop_days, journal, key_of, known, removals, settled, spent

DAY = "2026-01-05"
TEXTS = st.lists(st.text(), max_size=4)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path)


def line(key: str, user: str = "ann", **fields: object) -> JournalLine:
    return JournalLine(**{"key": key, "source": "judge", "iteration": "i", "trace_id": "t", "user_id": user, **fields})  # type: ignore[arg-type]


def note(store: Store, *lines: JournalLine, day: str = DAY) -> None:
    with journal(store, day) as writer:
        for each in lines:
            writer.add(each)


@given(TEXTS, TEXTS)
def test_different_questions_have_different_keys(one: list[str], other: list[str]) -> None:
    assert (key_of(*one) == key_of(*other)) == (one == other)


def test_what_was_noted_is_known_again(store: Store) -> None:
    first, second = line("a", values={"judge": 0.5}, tokens=7), line("b", missing={"judge": "judge_malformed"})
    note(store, first, second)
    assert known(store, DAY, {"a", "b", "c"}) == {"a": first, "b": second}
    assert known(store, "2026-01-06", {"a"}) == {}


def test_a_line_is_in_the_file_as_soon_as_it_is_noted(store: Store) -> None:
    with journal(store, DAY) as writer:
        writer.add(line("a"))
        assert known(store, DAY, {"a"}).keys() == {"a"}


def test_findings_ignore_a_line_that_a_kill_cut_off(store: Store) -> None:
    note(store, line("a"), line("b"))
    (path,) = store.path("rewards/findings", DAY).iterdir()
    path.write_bytes(path.read_bytes()[:-9])
    assert known(store, DAY, {"a", "b"}).keys() == {"a"}


@pytest.mark.parametrize("order", [(True, False), (False, True)])
def test_findings_prefer_what_stands(store: Store, order: tuple[bool, bool]) -> None:
    for again in order:
        note(store, line("a", again=again, outcome=str(again)))
    assert known(store, DAY, {"a"})["a"].again is False
    assert settled(store, DAY)["a"].again is False


def test_findings_sum_costs_over_attempts(store: Store) -> None:
    note(store, line("a", tokens=3, usd=0.5), line("b", tokens=4, usd=0.25, again=True))
    note(store, line("c", tokens=100, iteration="other"), line("d", tokens=100, source="admission"))
    note(store, line("e", tokens=5), day="2026-01-06")
    total = spent(store, [DAY, "2026-01-06"], "i", "judge")
    assert (total.tokens, total.usd) == (12, 0.75)


def test_verdicts_of_verifiers_are_not_the_paid_judges(store: Store) -> None:
    note(store, line("a"), line("b", source="verifier"))
    assert settled(store, DAY).keys() == {"a"}


def test_forgetting_takes_a_users_findings_and_no_others(store: Store) -> None:
    note(store, line("a", "ann"), line("b", "bob"), line("c", None))  # type: ignore[arg-type]
    note(store, line("d", "ann"), day="2026-01-06")
    value = make(removals(store, {"ann"}))
    assert [each.split(": ")[1] for each in value] == ["1 lines", "1 lines"]
    assert settled(store, DAY).keys() == {"b", "c"}
    assert settled(store, "2026-01-06") == {}
    assert make(removals(store, {"ann"})) == []
    drop_days(store, [DAY, "2026-01-07"])
    assert settled(store, DAY) == {}
