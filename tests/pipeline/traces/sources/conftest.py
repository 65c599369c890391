"""A source read to its end, and the account of what it gave."""

import hashlib
from collections.abc import Iterable

from pipeline.traces.rows import Rows
from pipeline.traces.sources.protocol import Source, SourcePart

from ..conftest import observation, score, write

__all__ = ["all_of", "observation", "read", "reasons", "score", "write"]


def all_of(blocks: Iterable[Rows]) -> Rows:
    """Blocks of rows as one."""
    result = Rows()
    for rows in blocks:
        result.traces += rows.traces
        result.rejected += rows.rejected
        result.scores += rows.scores
    return result


def read(source: Source, part: SourcePart | None = None) -> Rows:
    """The rows of one part, or of all."""
    return all_of(rows for p in ([part] if part else source.parts()) for rows in source.rows(p, hashlib.sha256()))


def reasons(rows: Rows) -> list[str]:
    return [f"{r.reason}:{r.line}:{r.day}" for r in rows.rejected]
