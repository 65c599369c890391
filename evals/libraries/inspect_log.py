"""An Inspect log, in JSON, as the results of one model: the only place that knows Inspect's format.

Refuses a log that is not whole: another status than success, a sample that is missing or was asked something else, a
score that is neither right nor wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from evals.defects import defects
from evals.results import EvalSample, ItemResult
from evals.suites import Item, Suite
from pipeline.rewards.verifiers import Outcome

CUT = ("max_tokens", "model_length")
"""Inspect's reasons to stop that cut an answer."""
VALUES = {"C": Outcome.correct, "I": Outcome.wrong, "N": Outcome.no_answer}
UNANSWERED = ("no_response", "invalid_response_format")
"""Inspect's reasons of a score that say that there was no answer to grade."""


def results(log: Mapping[str, Any], suite: Suite, samples: int, scorer: str) -> tuple[ItemResult, ...]:
    """The results in the order of the suite's items; an epoch of the log is a sample.

    Raises ValueError for a log that is not a finished run of `samples` epochs over exactly these items.
    """
    again = "Evaluate again; `inspect view` shows what happened."
    if log.get("status") != "success":
        why = (log.get("error") or {}).get("message", "it says no more")
        raise ValueError(f"{suite.name}: Inspect's run ended with the status {log.get('status')!r} ({why}). {again}")
    rows = {(str(row["id"]), int(row["epoch"])): row for row in log.get("samples") or []}
    wanted = {(item.id, epoch) for item in suite.items for epoch in range(1, samples + 1)}
    if rows.keys() != wanted:
        raise ValueError(
            f"{suite.name}: Inspect's log has {len(rows.keys() - wanted)} answers that were not asked for, and lacks "
            f"{len(wanted - rows.keys())} of {len(wanted)}. {again}"
        )
    return tuple(
        _result(item, [rows[item.id, epoch] for epoch in range(1, samples + 1)], suite, scorer) for item in suite.items
    )


def version(log: Mapping[str, Any], scorer: str) -> str:
    """What graded: the release of Inspect and the scorer."""
    packages = (log.get("eval") or {}).get("packages") or {}
    return f"inspect_ai {packages.get('inspect_ai', 'unknown')}: {scorer or 'its scorer'}"


def _result(item: Item, rows: list[Mapping[str, Any]], suite: Suite, scorer: str) -> ItemResult:
    if any(_asked(row) != item.messages or _target(row) != item.reference for row in rows):
        raise ValueError(
            f"{suite.name}: Inspect asked the item {item.id!r} with another text or target than it was listed with. "
            "Give the task a dataset that is the same each time, and sha256 of its file; then begin a new iteration."
        )
    return ItemResult(
        id=item.id,
        samples=tuple(_sample(row, item, suite, scorer) for row in rows),
        prompt_tokens=max(int(_usage(row).get("input_tokens", 0)) for row in rows),
    )


def _sample(row: Mapping[str, Any], item: Item, suite: Suite, scorer: str) -> EvalSample:
    choices = (row.get("output") or {}).get("choices") or []
    text = _text(choices[0]["message"]["content"]) if choices else ""
    cut = bool(choices) and choices[0].get("stop_reason") in CUT
    outcome, answer = (Outcome.error, "") if row.get("error") or not choices else _graded(row, suite.name, scorer)
    return EvalSample(
        text=text,
        tokens=int(_usage(row).get("output_tokens", 0)),
        finished=not cut and not row.get("limit"),
        outcome=outcome,
        answer=answer,
        defects=defects(text, suite.messages(item)),
    )


def _graded(row: Mapping[str, Any], name: str, scorer: str) -> tuple[Outcome, str]:
    scores = row.get("scores") or {}
    names = ", ".join(sorted(scores))
    if not scorer and len(scores) > 1:
        raise ValueError(f"{name}: the task has the scorers {names}. Name one of them in the suite's scorer.")
    if scorer and scores and scorer not in scores:
        raise ValueError(f"{name}: the task has no scorer {scorer!r}, but {names}. Name one of them.")
    score: Mapping[str, Any] = scores[scorer] if scorer and scores else next(iter(scores.values()), {})
    answer = str(score.get("answer") or "")
    if score.get("reason") in UNANSWERED:
        return Outcome.no_answer, answer
    return _outcome(score.get("value"), name), answer


def _outcome(value: object, name: str) -> Outcome:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return Outcome.error  # unscored: the grader failed, not the answer
    if isinstance(value, str) and value in VALUES:
        return VALUES[value]
    if isinstance(value, bool | int | float) and value in (0, 1):
        return Outcome.correct if value == 1 else Outcome.wrong
    raise ValueError(
        f"{name}: a score is {value!r}, and the gate counts right and wrong alone. Use a scorer that says C, I or N, "
        "or 1 and 0."
    )


def _asked(row: Mapping[str, Any]) -> list[dict[str, str]]:
    given = row["input"]
    if isinstance(given, str):
        return [{"role": "user", "content": given}]
    return [{"role": each["role"], "content": _text(each["content"])} for each in given]


def _target(row: Mapping[str, Any]) -> str:
    target = row["target"]
    return target if isinstance(target, str) else "\n".join(target)


def _usage(row: Mapping[str, Any]) -> Mapping[str, Any]:
    return (row.get("output") or {}).get("usage") or {}


def _text(content: str | list[Mapping[str, Any]]) -> str:
    """The text of a message; reasoning that the server told apart is none of it."""
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")
