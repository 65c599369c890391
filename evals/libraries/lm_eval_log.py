"""The samples of lm-evaluation-harness, as scripts/lm_eval_tasks.py writes them, as the results of one model.

They know neither the tokens of an answer nor whether it was cut. `tokens` are words here, and every answer counts as
finished: good enough to report, and why such a suite decides nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from evals.defects import defects
from evals.results import EvalSample, ItemResult
from evals.suites import Item, Suite
from pipeline.rewards.verifiers import Outcome

NO_ANSWER = "[invalid]"
"""What the harness's filters put where they matched nothing."""


def results(log: Mapping[str, Any], suite: Suite, metric: str, filter: str) -> tuple[ItemResult, ...]:
    """The results in the order of the suite's items.

    Raises ValueError for samples of other items, another text or target, or a metric that is neither 0 nor 1.
    """
    filters = sorted({row["filter"] for row in log["samples"]})
    if filter not in filters:
        raise ValueError(f"{suite.name}: the task has the filters {', '.join(filters)}, not {filter}. Name one.")
    rows = {row["id"]: row for row in log["samples"] if row["filter"] == filter}
    if rows.keys() != {item.id for item in suite.items}:
        raise ValueError(
            f"{suite.name}: the harness answered {len(rows)} items, and {len(suite.items)} were asked for, or others. "
            "Evaluate again."
        )
    return tuple(_result(item, rows[item.id], suite, metric) for item in suite.items)


def version(log: Mapping[str, Any], metric: str, filter: str) -> str:
    """What graded: the release of the harness, the metric and the filter."""
    return f"lm_eval {log['lm_eval']}: {metric} of {filter}"


def _result(item: Item, row: Mapping[str, Any], suite: Suite, metric: str) -> ItemResult:
    if [{"role": "user", "content": row["prompt"]}] != item.messages or row["target"] != item.reference:
        raise ValueError(
            f"{suite.name}: the harness asked item {item.id!r} with another text or target than it was listed with. "
            "Keep the task's data as they were, or begin a new iteration."
        )
    text = row["response"] or ""
    sample = EvalSample(
        text=text,
        tokens=max(1, len(text.split())),
        finished=True,
        outcome=_outcome(row, suite.name, metric),
        answer=str(row["answer"]),
        defects=defects(text, suite.messages(item)),
    )
    return ItemResult(id=item.id, samples=(sample,))


def _outcome(row: Mapping[str, Any], name: str, metric: str) -> Outcome:
    metrics: Mapping[str, float] = row["metrics"]
    if metric not in metrics:
        raise ValueError(f"{name}: the task has the metrics {', '.join(sorted(metrics))}, not {metric}. Name one.")
    if metrics[metric] not in (0, 1):
        raise ValueError(f"{name}: its {metric} is {metrics[metric]}, and right and wrong are counted. Name another.")
    if metrics[metric] == 1:
        return Outcome.correct
    return Outcome.no_answer if row["answer"] in ("", NO_ANSWER) else Outcome.wrong
