"""Caps: whatever is said, and by whomever, nobody counts for more than their part, and nobody can silence another."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.rewards.feedback import principal, tenant_level
from tests.pipeline.rewards.feedback_rows import DOWN, UP, call, settled

Rows = list[dict[str, Any]]
DAY_S = 86_400
CAPS = {"max_per_user": 3, "max_tenant_share": 0.25, "burst": 6}


def by(count: int, start: int = 0, tenant: str | None = None, every_s: int = DAY_S, **columns: Any) -> Rows:
    """Rated calls of one user, who asks something else every time."""
    metadata = json.dumps({"tenant_id": tenant} if tenant else {})
    numbers = range(start, start + count)
    return [call(f"t{n:04d}", UP, at=every_s * n, metadata=metadata, **columns) for n in numbers]


def reasons(rows: Rows, **caps: Any) -> Counter[str]:
    return Counter(result.reason for result in settled(rows, size=200, **(CAPS | caps)).values())


def test_of_one_user_no_more_than_the_cap_count() -> None:
    assert reasons(by(50)) == {"": 3, "over_user_cap": 47}
    result = settled(by(50), **CAPS).values()
    assert all((opinion.value is None) == (opinion.reason != "") for opinion in result)


def test_caps_are_by_user_else_by_session_or_trace() -> None:
    assert reasons([*by(5, user="ann"), *by(5, 100, user="bob")]) == {"": 6, "over_user_cap": 4}
    assert reasons([*by(5, user=None), *by(5, 100, user=None, session="s2")]) == {"": 6, "over_user_cap": 4}
    assert reasons(by(5, user=None, session=None)) == {"": 5}
    assert reasons([*by(3, user="s1"), *by(3, 100, user=None, session="s1")]) == {"": 6}  # only the names are alike


def test_caps_ignore_time_and_content() -> None:
    rows = by(40)
    counted = {trace for trace, result in settled(rows, **CAPS).items() if not result.reason}
    assert counted not in ({row["trace_id"] for row in rows[:3]}, {row["trace_id"] for row in rows[-3:]})
    for place, row in enumerate(rows):
        row["timestamp"], row["feedback"] = rows[-place]["timestamp"], call("t", DOWN)["feedback"]
    assert {trace for trace, result in settled(rows, **CAPS).items() if not result.reason} == counted


def test_the_draw_stays_what_it_was() -> None:
    """Another one would give other labels under the same iteration id."""
    counted = {trace for trace, opinion in settled(by(40), **CAPS).items() if not opinion.reason}
    assert counted == {"t0014", "t0016", "t0034"}


@pytest.mark.parametrize(
    ("count", "every_s", "expected"),
    [
        (5, 1, {"": 3, "over_user_cap": 2}),
        (6, 1, {"burst": 6}),
        (6, 720, {"burst": 6}),  # the sixth an hour after the first
        (6, 721, {"": 3, "over_user_cap": 3}),
        (50, 721, {"": 3, "over_user_cap": 47}),
    ],
)
def test_a_burst_sets_everything_aside(count: int, every_s: int, expected: dict[str, int]) -> None:
    assert reasons(by(count, every_s=every_s)) == expected


def test_one_burst_is_enough_and_concerns_nobody_else() -> None:
    rows = [*by(6, every_s=1), *by(3, 100), *by(3, 200, user="bob")]
    assert reasons(rows) == {"burst": 9, "": 3}


def test_retries_can_burst_too() -> None:
    assert reasons([call(f"t{n}", ask="why?", at=10 * n) for n in range(7)]) == {"burst": 6}


# Tenants


def users(tenant: str | None, count: int) -> Rows:
    """As many users of a tenant, with one rated call each."""
    metadata = json.dumps({"tenant_id": json.dumps(tenant)}) if tenant else "{}"
    return [call(f"{tenant}-{n:03d}", UP, user=f"{tenant}-{n}", metadata=metadata) for n in range(count)]


def counted(rows: Rows, **caps: Any) -> dict[str, int]:
    result = settled(rows, size=500, **(CAPS | caps))
    return dict(Counter(trace.partition("-")[0] for trace, opinion in result.items() if not opinion.reason))


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({"a": 90}, {"a": 90}),  # a lone tenant is all there is
        ({"a": 90, None: 50}, {"a": 90, "None": 50}),
        ({"a": 90, "b": 30}, {"a": 30, "b": 30}),  # two of them: half each
        ({"a": 90, "b": 20, "c": 20, "d": 20, "e": 20}, {"a": 26, "b": 20, "c": 20, "d": 20, "e": 20}),
        (
            {"a": 90, "b": 20, "c": 20, "d": 20, "e": 20, None: 99},
            {"a": 26, "b": 20, "c": 20, "d": 20, "e": 20} | {"None": 99},
        ),
        ({"a": 90, "b": 1}, {"a": 3, "b": 1}),  # as many as one user may
        ({"a": 3, "b": 1}, {"a": 3, "b": 1}),
    ],
)
def test_a_tenant_counts_for_its_share_of_what_remains(sizes: dict[str | None, int], expected: dict[str, int]) -> None:
    rows = [row for tenant, count in sizes.items() for row in users(tenant, count)]
    assert counted(rows) == expected


def test_what_a_user_cap_set_aside_takes_nobodys_seat() -> None:
    others = [row for tenant in "bcde" for row in users(tenant, 20)]
    loud = [call(f"a-loud{n}", UP, at=DAY_S * n, metadata='{"tenant_id": "a"}') for n in range(50)]
    assert counted([*others, *users("a", 60), *loud])["a"] == 26


def test_a_share_of_one_is_no_cap() -> None:
    assert counted([*users("a", 90), *users("b", 1)], max_tenant_share=1.0) == {"a": 90, "b": 1}


@given(st.lists(st.integers(1, 10**6), max_size=12), st.floats(0, 1), st.integers(1, 50))
def test_the_level_is_the_highest_at_which_every_share_holds(counts: list[int], share: float, least: int) -> None:
    level = tenant_level(counts, share, least)
    kept = [min(count, level) for count in counts]

    def holds(level: int) -> bool:
        cut = [min(count, level) for count in counts]
        return all(n <= least or n <= share * sum(cut) or n * len(counts) <= sum(cut) for n in cut)

    assert all(n >= min(count, least) for n, count in zip(kept, counts, strict=True))
    assert holds(level)
    if counts and level < max(counts):
        assert not holds(level + 1)


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=8), st.integers(0, 7), st.integers(1, 1000), st.floats(0, 1))
def test_more_from_one_tenant_never_takes_from_the_others(counts: list[int], who: int, more: int, share: float) -> None:
    who %= len(counts)
    grown = [count + more * (place == who) for place, count in enumerate(counts)]
    assert tenant_level(grown, share, 1) >= tenant_level(counts, share, 1)


# Any multiset of feedback


SAID = st.tuples(
    st.sampled_from(["ann", "bob", "eve", None]),
    st.sampled_from(["s1", "s2", None]),
    st.sampled_from(["acme", "initech", "hooli", "umbrella", "globex", None]),
    st.integers(0, 9),  # thousands of seconds
    st.sampled_from([[], [UP], [DOWN], [UP, UP], [("retry", 0.0)], [("judge", None, "EVAL")], [("stars", 0.3), DOWN]]),
    st.sampled_from(["why?", "how?"]),
)
SETTINGS = st.fixed_dictionaries(
    {
        "max_per_user": st.integers(1, 4),
        "max_tenant_share": st.sampled_from([0.0, 0.1, 0.25, 0.5, 1.0]),
        "burst": st.integers(2, 8),
        "retry_window_s": st.sampled_from([0.0, 1500.0]),
    }
)
many = settings(max_examples=10)


def rows_of(said: list[tuple[Any, ...]]) -> Rows:
    return [
        call(
            f"t{n}",
            *scores,
            user=user,
            session=session,
            at=1000 * at,
            ask=ask,
            metadata=json.dumps({"tenant_id": tenant}),
        )
        for n, (user, session, tenant, at, scores, ask) in enumerate(said)
    ]


@pytest.mark.slow
@many
@given(st.lists(SAID, max_size=40), SETTINGS, st.randoms())
def test_nobody_is_over_a_cap_and_nothing_is_lost(said: list[Any], caps: dict[str, Any], chance: Any) -> None:
    rows = rows_of(said)
    result = settled(rows, size=50, **caps)
    uncapped = settled(rows, size=50, **(caps | {"max_per_user": 1000, "burst": 1000, "max_tenant_share": 1.0}))
    assert result.keys() == uncapped.keys()  # counted and set aside are all that was rated
    assert all(opinion.value in (None, uncapped[trace].value) for trace, opinion in result.items())
    assert all((opinion.value is None) == bool(opinion.reason) for opinion in result.values())
    assert {opinion.reason for opinion in result.values()} <= {"", "burst", "over_user_cap", "over_tenant_cap"}
    assert all(0 < opinion.value < 1 for opinion in result.values() if opinion.value is not None)

    standing = [row for row in rows if row["trace_id"] in result and not result[row["trace_id"]].reason]
    each = Counter(principal(row["user_id"], row["session_id"], row["trace_id"]) for row in standing)
    assert all(count <= caps["max_per_user"] for count in each.values())
    tenants = Counter(t for row in standing if (t := json.loads(row["metadata"])["tenant_id"]) is not None)
    most = max(caps["max_tenant_share"] * tenants.total(), tenants.total() / max(1, len(tenants)), caps["max_per_user"])
    assert all(count <= most + 1e-9 for count in tenants.values())

    chance.shuffle(rows)
    assert settled(rows, size=7, **caps) == result


@pytest.mark.slow
@many
@given(st.lists(SAID, max_size=25), st.lists(SAID, max_size=25), SETTINGS, st.booleans())
def test_an_attacker_changes_nothing_for_the_others(
    said: list[Any], attack: list[Any], caps: dict[str, Any], named: bool
) -> None:
    """Without a tenant, or among people without one. `eve` may rate what she likes, as often as she likes."""
    others = [(user if user != "eve" else "bob", s, t if named else None, *rest) for user, s, t, *rest in said]
    hers = [("eve", s, None if named else t, *rest) for _, s, t, *rest in attack]
    alone = settled(rows_of(others), size=50, **caps)
    together = settled(rows_of([*others, *hers]), size=50, **caps)
    mine = {f"t{n}" for n in range(len(others))}
    assert {trace: opinion for trace, opinion in together.items() if trace in mine} == alone


@pytest.mark.slow
@many
@given(st.lists(SAID, max_size=25), st.lists(SAID, min_size=1, max_size=25), SETTINGS)
def test_of_another_tenant_an_attacker_changes_no_value(
    said: list[Any], attack: list[Any], caps: dict[str, Any]
) -> None:
    """Shares depend on one another: of those who share no tenant with her, only the tenant cap can move."""
    others = [(user if user != "eve" else "bob", *rest) for user, *rest in said]
    hers = [("eve", s, "evil", *rest) for _, s, _, *rest in attack]
    alone = settled(rows_of(others), size=50, **caps)
    together = settled(rows_of([*others, *hers]), size=50, **caps)
    for trace, before in alone.items():
        after = together[trace]
        assert after.answers == before.answers
        moved = {before.reason, after.reason}
        assert len(moved) == 1 or moved == {"", "over_tenant_cap"}
        assert before.value == after.value or None in (before.value, after.value)
