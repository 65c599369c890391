"""Feedback: what one call's answers are worth, whose it is, and how much of one user's counts."""

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.recipe.rewards import Feedback
from pipeline.rewards.feedback import COLUMNS, OPINIONS, principal, settle, tenant_of
from pipeline.traces.rows import SCHEMA

ROWS = pa.schema([SCHEMA.field(name) for name in COLUMNS])
UP, DOWN = ("thumb", 1.0), ("thumb", 0.0)
Rows = list[dict[str, Any]]


class Opinion(NamedTuple):
    value: float | None
    reason: str


def call(trace: str, *scores: tuple[Any, ...], **columns: Any) -> dict[str, Any]:
    """A governed row. `scores` are (name, value) or (name, value, source);"""
    feedback = [dict(zip(("name", "value", "source"), (*score, "API")[:3], strict=True)) for score in scores]
    return {
        "trace_id": trace,
        "observation_id": f"{trace}-1",
        "user_id": columns.get("user", "ann"),
        "session_id": columns.get("session", "s1"),
        "feedback": feedback,
    }


def settled(rows: Sequence[dict[str, Any]], size: int = 5, most: int = 20, **settings: Any) -> dict[str, Opinion]:
    """What became of each trace that somebody had an opinion of."""
    batches = (pa.RecordBatch.from_pylist(list(rows[at : at + size]), schema=ROWS) for at in range(0, len(rows), size))
    table = settle(batches, Feedback(**settings).model_copy(update={"max_per_user": most}))
    assert table.schema.equals(OPINIONS)
    assert table.sort_by([("trace_id", "ascending"), ("observation_id", "ascending")]).equals(table)
    return {row["trace_id"]: Opinion(row["value"], row["reason"]) for row in table.to_pylist()}


@pytest.mark.parametrize(
    ("scores", "value"),
    [
        ([UP], 0.75),
        ([DOWN], 0.25),
        ([("stars", 0.5)], 0.5),
        ([(f"question {n}", 1.0) for n in range(10)], 10.5 / 11),
        ([UP] * 100, 0.75),  # clicking a hundred times is one answer
        ([UP, DOWN], 0.5),  # so is changing one's mind
        ([UP, ("stars", 0.0)], 0.5),
        ([UP, ("retry", 0.0), ("retry", 1.0)], 0.75),
        ([UP, ("judge", None, "EVAL"), ("comment", None)], 0.75),
        ([UP, ("stars", 7.0), ("stars", -1.0), ("stars", float("nan"))], 0.75),
    ],
)
def test_an_opinion_is_as_strong_as_its_answers(scores: list[Any], value: float) -> None:
    assert settled([call("t", *scores)]) == {"t": Opinion(pytest.approx(value), "")}


@pytest.mark.parametrize("scores", [[], [("judge", None, "EVAL")], [("retry", 0.0)], [("stars", 5.0)]])
def test_who_said_nothing_has_no_row(scores: list[Any]) -> None:
    assert settle([], Feedback()).num_rows == 0
    assert settled([call("t", *scores)]) == {}


SCORES = st.lists(
    st.tuples(
        st.sampled_from(["thumb", "stars", "retry"]),
        st.none() | st.sampled_from([0.0, 0.5, 1.0]) | st.floats(),
        st.sampled_from(["API", "ANNOTATION"]),
    ),
    max_size=6,
)


@pytest.mark.slow
@settings(max_examples=25)
@given(st.lists(SCORES, min_size=1, max_size=8), st.floats(0.01, 10), st.randoms())
def test_values_follow_the_rule_whatever_is_said(said: list[list[Any]], strength: float, chance: Any) -> None:
    rows = [call(f"t{n}", *scores, user=f"u{n}") for n, scores in enumerate(said)]
    expected: dict[str, Opinion] = {}
    for n, scores in enumerate(said):
        named = [(name, value) for name, value, _ in scores if value is not None and 0 <= value <= 1]
        answers = [
            sum(values) / len(values)
            for wanted in ("thumb", "stars")
            if (values := [v for name, v in named if name == wanted])
        ]
        if answers:
            value = pytest.approx((sum(answers) + strength / 2) / (len(answers) + strength))
            expected[f"t{n}"] = Opinion(value, "")
    result = settled(rows, prior_strength=strength)
    assert result == expected
    for row in rows:
        chance.shuffle(row["feedback"])
    chance.shuffle(rows)
    assert settled(rows, size=3, prior_strength=strength) == result  # to the last bit


def by(count: int, start: int = 0, **columns: Any) -> Rows:
    """Rated calls of one user."""
    return [call(f"t{n:04d}", UP, **columns) for n in range(start, start + count)]


def reasons(rows: Rows) -> Counter[str]:
    return Counter(result.reason for result in settled(rows, size=200, most=3).values())


def test_of_one_principal_no_more_than_the_cap_count() -> None:
    assert reasons(by(50)) == {"": 3, "over_user_cap": 47}
    assert all((opinion.value is None) == (opinion.reason != "") for opinion in settled(by(50)).values())
    assert reasons([*by(5, user="ann"), *by(5, 100, user="bob")]) == {"": 6, "over_user_cap": 4}
    assert reasons([*by(5, user=None), *by(5, 100, user=None, session="s2")]) == {"": 6, "over_user_cap": 4}
    assert reasons(by(5, user=None, session=None)) == {"": 5}
    assert reasons([*by(3, user="s1"), *by(3, 100, user=None, session="s1")]) == {"": 6}  # only the names are alike


def test_the_cap_draws_by_ids_and_the_draw_stays() -> None:
    """Neither time nor content decides; another draw would give other labels under the same iteration id."""

    def counted(rows: Rows) -> set[str]:
        return {trace for trace, opinion in settled(rows, most=3).items() if not opinion.reason}

    rows = by(40)
    assert counted(rows) == {"t0014", "t0016", "t0034"}
    for row in rows:
        row["feedback"] = call("t", DOWN)["feedback"]
    assert counted(rows[::-1]) == {"t0014", "t0016", "t0034"}


NAMES = st.none() | st.sampled_from(["", "a", "session:a", "trace:a", "user:a", "user:user:a", "user:session:a"])


@given(NAMES, NAMES, NAMES, NAMES)
def test_no_two_principals_share_a_name(
    user: str | None, session: str | None, other: str | None, place: str | None
) -> None:
    def who(user: str | None, session: str | None) -> tuple[str, str]:
        return ("user", user) if user else ("session", session) if session else ("trace", "a")

    same = who(user, session) == who(other, place)
    assert (principal(user, session, "a") == principal(other, place, "a")) == same
    assert (principal("ann", "s", "t"), principal(None, "s", "t"), principal("", "", "t")) == (
        "ann", "session:s", "trace:t",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("metadata", "tenant"),
    [
        ({"org": "acme"}, "acme"),
        ({"org": '"acme"'}, "acme"),
        ({"org": 7}, "7"),
        ({"org": {"id": 7}}, '{"id":7}'),
        ({"org": "\ud800"}, "?"),
        ({"org": None}, None),
        ({"org": ""}, None),
        ({"other": "acme"}, None),
    ],
)
def test_a_tenant_is_what_the_metadata_says(metadata: dict[str, Any], tenant: str | None) -> None:
    assert tenant_of(metadata, "org") == tenant
