"""The answers of both models side by side, a row for each item, for the iteration's run in MLflow. No item of a suite
from traces and none with a user is in the table."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from evals.bundle import EvalEvidence, SuiteEvidence
from evals.results import ItemResult
from evals.suites import Item
from pipeline.core.conversation import shown, shown_answer
from pipeline.recipe.suites import TracesSuite

ROWS = 500
"""Of a suite at most, those first that changed most."""
CHARACTERS = 4000
"""Of a text at most."""
SHARES = ("suite", "slice", "champion", "candidate", "difference")
TEXTS = ("item", "question", "reference", "champion's answer", "candidate's answer")


def answer_table(evidence: EvalEvidence, texts: bool) -> dict[str, Any]:
    """`columns` and `data`. `champion` and `candidate` are shares of right answers of all that were graded, None where
    none was; an answer is the first of its item."""
    section = evidence.provenance.section
    free = [each for each in evidence.suites if not isinstance(section.suite(each.suite.name), TracesSuite)]
    rows = [row for each in free for row in _rows(each, texts)]
    return {"columns": [*SHARES, *(TEXTS if texts else ())], "data": rows}


def _rows(evidence: SuiteEvidence, texts: bool) -> list[list[Any]]:
    one, other = ({result.id: result for result in arm.results} for arm in evidence.arms)
    free = [item for item in evidence.suite.items if item.user_id is None]
    pairs = [(item, one[item.id], other[item.id]) for item in free if item.id in one and item.id in other]
    rows = [list(_row(evidence.suite.name, pair, texts)) for pair in pairs]
    return sorted(rows, key=lambda row: -abs(row[SHARES.index("difference")] or 0.0))[:ROWS]


def _row(suite: str, pair: tuple[Item, ItemResult, ItemResult], texts: bool) -> Iterator[Any]:
    item, *results = pair
    champion, candidate = map(_right, results)
    yield from (suite, item.slice, champion, candidate)
    yield candidate - champion if champion is not None and candidate is not None else None
    if texts:
        asked = "\n".join(f"{message['role']}: {message['content']}" for message in shown(item.messages))
        answers = [shown_answer(result.samples[0].text) if result.samples else "" for result in results]
        yield from (text[:CHARACTERS] for text in (item.id, asked, item.reference, *answers))


def _right(result: ItemResult) -> float | None:
    scores = [score for sample in result.samples if (score := sample.outcome.score) is not None]
    return sum(scores) / len(scores) if scores else None
