"""The adapter from Inspect's log: a recorded one, and every one that says too little."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evals.libraries.inspect_log import results, version
from evals.suites import Item, Suite
from pipeline.rewards.verifiers import Outcome

LOG = Path(__file__).parent / "inspect_log.json"
SUITE = Suite(
    name="sums",
    items=tuple(
        Item(
            id=f"sum-{n}", cluster="c0", messages=[{"role": "user", "content": f"What is {n} and {n}?"}],
            reference=str(2 * n), slice="",
        )
        for n in (1, 0)
    ),
)  # fmt: skip


def recorded() -> dict[str, Any]:
    return json.loads(LOG.read_text())


def test_an_epoch_becomes_a_sample_in_the_suites_order() -> None:
    second, first = results(recorded(), SUITE, 2, "")
    assert (first.id, first.prompt_tokens, second.id) == ("sum-0", 8, "sum-1")
    assert [(s.text, s.tokens, s.finished, s.outcome, s.answer) for s in first.samples] == [
        ("It is 0", 3, True, Outcome.correct, "0"),
        ("No idea", 2, True, Outcome.no_answer, ""),
    ]
    assert [(s.text, s.tokens, s.finished, s.outcome) for s in second.samples] == [
        ("It is", 2, False, Outcome.wrong),
        ("", 0, True, Outcome.error),
    ]
    assert version(recorded(), "match") == "inspect_ai 0.3.285: match"


@pytest.mark.parametrize("status", ["error", "cancelled", "started", None])
def test_a_log_that_is_no_success_is_refused(status: str | None) -> None:
    log = {**recorded(), "status": status, "error": {"message": "the server went away"}}
    with pytest.raises(ValueError, match=r"(?s)status.*the server went away.*Evaluate again"):
        results(log, SUITE, 2, "")


def change(**fields: Any) -> Callable[[dict[str, Any]], None]:
    return lambda log: log["samples"][0].update(fields)


def score(value: object, **more: Any) -> Callable[[dict[str, Any]], None]:
    return change(scores={"match": {"value": value, "answer": "0", **more}})


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda log: log["samples"].pop(), "lacks 1 of 4"),
        (lambda log: log.update(samples=[]), "lacks 4 of 4"),
        (change(epoch=3), "1 answers that were not asked for, and lacks 1"),
        (change(input="What is 9 and 9?"), "another text or target"),
        (change(target="9"), "another text or target"),
        (change(scores={"match": {"value": "C"}, "other": {"value": "I"}}), "the scorers match, other"),
        (score("P"), "a score is 'P'"),
        (score(0.5), r"a score is 0\.5"),
        (score({"a": 1}), "a score is"),
    ],
)
def test_a_log_that_says_too_little_is_refused(edit: Callable[[dict[str, Any]], None], words: str) -> None:
    log = recorded()
    edit(log)
    with pytest.raises(ValueError, match=words):
        results(log, SUITE, 2, "")


@pytest.mark.parametrize(
    ("edit", "outcome"),
    [
        (score(1), Outcome.correct),
        (score(1.0), Outcome.correct),
        (score(True), Outcome.correct),
        (score(0), Outcome.wrong),
        (score(math.nan), Outcome.error),
        (score("I", reason="no_response"), Outcome.no_answer),
        (change(scores={}), Outcome.error),
        (change(error={"message": "the scorer broke"}), Outcome.error),
    ],
)
def test_a_score_becomes_an_outcome(edit: Callable[[dict[str, Any]], None], outcome: Outcome) -> None:
    log = recorded()
    edit(log)
    assert results(log, SUITE, 2, "")[1].samples[0].outcome is outcome


def test_a_sample_that_hit_a_limit_of_its_own_is_cut() -> None:
    log = recorded()
    change(limit={"type": "time", "limit": 3})(log)
    assert not results(log, SUITE, 2, "")[1].samples[0].finished


def test_the_scorer_that_the_suite_names_decides() -> None:
    log = recorded()
    for row in log["samples"]:
        row["scores"] = {"match": {"value": "C"}, "strict": {"value": "I"}}
    assert results(log, SUITE, 2, "strict")[1].samples[0].outcome is Outcome.wrong
    with pytest.raises(ValueError, match="no scorer 'other', but match, strict"):
        results(log, SUITE, 2, "other")
