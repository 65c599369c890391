"""What a judge said, as lines of the journal."""

from __future__ import annotations

from typing import Any

from pipeline.rewards.findings import Line
from pipeline.rewards.judge import Preferred
from pipeline.rewards.samples import Sample

AGAIN = frozenset({"rag_error", "rag_timeout", "rag_budget"})
"""Reasons of Ragas that another attempt may get past; a judgement says by itself whether it is final."""


def line_of(
    key: str, source: Any, iteration: str, sample: Sample, values: dict[str, float], missing: dict[str, str],
    tokens: int, usd: float,
) -> Line:  # fmt: skip
    return Line(
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


def order_line(key: str, iteration: str, sample: Sample, said: Preferred) -> Line:
    values = {} if said.consistent is None else {"consistent": float(said.consistent)}
    missing = {} if said.consistent is not None else {"consistent": str(said.reason)}
    line = line_of(key, "order", iteration, sample, values, missing, said.tokens, said.usd)
    line.again = not said.final
    return line


def consistent(line: Line) -> bool | None:
    return bool(line.values["consistent"]) if "consistent" in line.values else None
