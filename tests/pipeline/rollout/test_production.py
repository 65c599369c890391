"""Quality by model version, read from sources of production as they are exported."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pipeline.core.storage import ModelRef, Store
from pipeline.recipe import Rewards, load
from pipeline.recipe.sources import ExportSource
from pipeline.recipe.traces import Traces
from pipeline.rollout.evidence import ArmLook, LiveMetrics, LookRequest, UnitCounts
from pipeline.rollout.grading import PENDING, Grading, answer_grader, by_thumbs
from pipeline.rollout.production import ProductionLooks, ProductionTraces, version_of
from pipeline.rollout.router import Split
from pipeline.traces.erased import NOBODY
from pipeline.traces.rows import Trace
from pipeline.traces.sources.protocol import Address
from tests.contexts import forgetting
from tests.pipeline.traces.conftest import observation, score, write

RECIPE = Path(__file__).parents[3] / "jobs" / "recipes" / "embedded.yaml"
EXACT = Rewards.model_validate({"verifier": {"kind": "exact"}})
CHAMPION, CANARY = (ModelRef(uri=f"/{letter}", digest=letter * 64) for letter in "ab")
A, B, OTHER = (f"model@{letter * 12}" for letter in "abc")
START = datetime(2026, 1, 5, 10, tzinfo=UTC).timestamp()
SPLIT = Split(rollout="r", epoch=1, champion=CHAMPION, champion_weight=95, canary=CANARY, canary_weight=5)


def request(since: float = START - 1, now: float = START + 3600, graded_since: float | None = None) -> LookRequest:
    return LookRequest(since=since, now=now, slow_over_s=None, graded_since=graded_since)


class Operations:
    """A metrics server that saw so many requests until so long ago."""

    def __init__(self, lag_s: float = 0.0) -> None:
        self.lag_s = lag_s

    def look(self, split: Split, request: LookRequest) -> LiveMetrics | None:
        if request.now < START:
            return None
        arm, end = ArmLook(units={"": UnitCounts(requests=100, errors=1)}), request.now - self.lag_s
        return LiveMetrics(champion=arm, canary=arm, window_start=request.since, window_end=end, graded_until=end)


class Seen(NamedTuple):
    champion: UnitCounts
    canary: UnitCounts
    whole: LiveMetrics


def look(root: Path, asked: LookRequest | None = None, grading: Grading | None = None, **more: Any) -> Seen:
    source = ExportSource(kind="langfuse_export", uri=str(root))
    erased, log = more.get("erased", lambda: NOBODY), more.get("log", print)
    production = ProductionTraces(Address(source, str(root)), Traces(source=source), "model", erased)
    operations = Operations(more.get("lag_s", 0.0))
    with answer_grader(load(RECIPE), None, Store(root), "r") as references:
        looks = ProductionLooks(operations, production, grading or references, EXACT, log)
        seen = looks.look(SPLIT, asked or request())
    assert seen is not None
    return Seen(seen.champion.units[""], seen.canary.units[""], seen)


def answers(count: int, model: str, wrong: int = 0, first: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """Answers a second apart, of which the first so many are wrong."""
    numbers = range(first, first + count)
    rows = [observation(n, provided_model_name=model, **changes) for n in numbers]
    for row in rows[:wrong]:
        row["output"] = json.dumps({"role": "assistant", "content": "I do not know that number at all."})
    return rows


def test_answers_are_graded_by_the_version_they_name(tmp_path: Path) -> None:
    rows = [
        *answers(10, A),
        *answers(10, B, wrong=5, first=10),
        *answers(3, OTHER, first=20),
        *answers(2, "model", first=30),
    ]
    write(tmp_path, "observations_v2/2026-01-05.jsonl", rows)
    seen = look(tmp_path)
    assert (seen.champion.graded, seen.canary.graded) == (10, 10)
    assert (seen.champion.correct, seen.canary.correct) == (10, 5)


def test_a_row_is_counted_in_one_of_two_looks(tmp_path: Path) -> None:
    write(tmp_path, "observations_v2/2026-01-05.jsonl", [*answers(10, A), *answers(10, B, first=20)])
    first = look(tmp_path, request(now=START + 24))
    assert (first.champion.graded, first.canary.graded) == (10, 5) and first.whole.graded_until == START + 24
    second = look(tmp_path, request(since=START + 24, graded_since=first.whole.graded_until))
    assert (second.champion.graded, second.canary.graded) == (0, 5)


def test_grades_that_come_late_hold_the_watermark(tmp_path: Path) -> None:
    write(tmp_path, "observations_v2/2026-01-05.jsonl", [*answers(30, A), *answers(30, B, first=30)])
    seen = look(tmp_path, grading=Grading(lambda asked: ["correct"] * 40 + [PENDING] * (len(asked) - 40)))
    # 10 of the canary's first 10 are graded, and of 11 more than 5% are not.
    assert START + 39 <= seen.whole.graded_until < START + 40
    assert (seen.champion.graded, seen.canary.graded, seen.canary.ungraded) == (30, 10, 0)
    after = look(tmp_path, request(graded_since=seen.whole.graded_until))
    assert (after.champion.graded, after.canary.graded) == (0, 20), "and are counted once they are there"


def test_where_thumbs_alone_grade_the_unrated_are_counted(tmp_path: Path) -> None:
    rows = [*answers(4, A), *answers(4, B, wrong=4, first=10)]
    write(tmp_path, "observations_v2/2026-01-05.jsonl", rows)
    thumbs = [score(n, n, float(n < 10)) for n in (0, 1, 10)]
    write(tmp_path, "scores/2026-01-06.jsonl", [*thumbs, score(99, 11, 1.0, source="EVAL")])
    seen = look(tmp_path, grading=by_thumbs(60.0))
    assert (seen.champion.graded, seen.champion.correct, seen.champion.ungraded) == (2, 2, 2)
    assert (seen.canary.graded, seen.canary.correct, seen.canary.ungraded) == (1, 0, 3), "of references nothing"
    early = look(tmp_path, request(now=START + 61.5), grading=by_thumbs(60.0))
    assert (early.whole.graded_until, early.champion.graded + early.champion.ungraded) == (START + 1.5, 2)
    own = look(tmp_path)
    assert own.canary.graded == 4


def trace(model: str = "", **metadata: Any) -> Trace:
    moment = datetime(2026, 1, 5)
    return Trace("t", "o", moment, model, None, None, [], "", 1, metadata=json.dumps(metadata))


@pytest.mark.parametrize(
    ("given", "version"),
    [
        (trace(A), "a" * 12),
        (trace("model", version=A), "a" * 12),
        (trace("model", tags=["beta", A]), "a" * 12),
        (trace(A, version="1.2.0", release="main"), "a" * 12),
        (trace(A, version=B), ""),
        (trace("model"), ""),
        (trace(A + "b"), ""),
        (trace("a" * 12, version=7, tags="model"), ""),
    ],
)
def test_a_version_is_named_never_guessed(given: Trace, version: str) -> None:
    assert version_of(given, "model") == version


def test_grades_join_what_a_metrics_server_counted(tmp_path: Path) -> None:
    write(tmp_path, "observations_v2/2026-01-05.jsonl", [*answers(10, A), *answers(10, B, first=20)])
    write(tmp_path, "observations_v2/2026-01-06.jsonl", answers(3, OTHER, first=12))
    notes: list[str] = []
    seen = look(tmp_path, request(now=START + 54), lag_s=30.0, log=notes.append)
    assert seen.whole.window_end == START + 24
    assert seen.whole.graded_until == START + 24, "grades end where the operations do"
    assert (seen.canary.requests, seen.canary.errors, seen.canary.graded) == (100, 1, 5)
    assert notes == ["quality: 3 traces name neither of the two models"]
    with pytest.raises(AssertionError):
        look(tmp_path, request(now=START - 5))


def test_users_who_refused_or_are_forgotten_are_not_graded(tmp_path: Path) -> None:
    refused = {"metadata": {"user_consent": "false", "expected_answer": "1"}}
    rows = [*answers(8, A), *answers(2, A, first=10, **refused), *answers(4, B, first=20)]
    rows += answers(4, B, first=30, user_id="forgotten")
    write(tmp_path, "observations_v2/2026-01-05.jsonl", rows)
    before, after = look(tmp_path), look(tmp_path, erased=lambda: forgetting("forgotten"))
    assert (before.champion.graded, before.canary.graded) == (8, 8)
    assert after.canary.graded == 4
