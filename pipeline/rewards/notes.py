"""What a judge said, as lines of the journal."""

from __future__ import annotations

from typing import Any

from pipeline.rewards.findings import JournalLine
from pipeline.rewards.judge import Preferred
from pipeline.rewards.samples import RewardSample

AGAIN = frozenset({"rag_error", "rag_timeout", "rag_budget"})
"""Reasons of Ragas that another attempt may get past; a judgement says by itself whether it is final."""


def line_of(
    key: str, source: Any, iteration: str, sample: RewardSample, values: dict[str, float], missing: dict[str, str],
    tokens: int, usd: float,
) -> JournalLine:  # fmt: skip
    return JournalLine(
        key=key,
        source=source,
        iteration=iteration,
        trace_id=sample.trace_id,
        user_id=sample.user_id,
        values=values,
        missing=missing,
        tokens=tokens,
        usd=usd,
        again=not AGAIN.isdisjoint(missing.values()),
    )


def order_line(key: str, iteration: str, sample: RewardSample, preference: Preferred) -> JournalLine:
    values = {} if preference.consistent is None else {"consistent": float(preference.consistent)}
    missing = {} if preference.consistent is not None else {"consistent": str(preference.reason)}
    line = line_of(key, "order", iteration, sample, values, missing, preference.tokens, preference.usd)
    line.again = not preference.final
    return line


def consistent(line: JournalLine) -> bool | None:
    return bool(line.values["consistent"]) if "consistent" in line.values else None
