"""Reader of a source that an installed package brings (`preference_tuning.sources`).

Owns what such a package is held to: the protocol, rows that a table can hold, and the digest of what it read. What its
authors did wrong names their distribution. Refuses to read anything itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, TypeVar, cast

import msgspec

from pipeline.plugins import build, fault, unlike
from pipeline.recipe.plugin import PluginSource
from pipeline.traces.records import Reason
from pipeline.traces.rows import Attributes, Rejection, Rows, Score, Trace
from pipeline.traces.sources.protocol import Digest, External, Probed, Source, SourcePart

HOLDS = ("calls", "scores", "attributes")
R = TypeVar("R", Trace, Score, Attributes)


class PluggedSource:
    def __init__(self, uri: str, section: PluginSource) -> None:
        self._plugin = section.installed()
        source: Any = build(self._plugin, uri, options=section.options)
        lacks = [name for name in ("parts", "rows") if not callable(getattr(source, name, None))]
        lacks += [] if isinstance(getattr(source, "label", None), str) else ["label"]
        if lacks:
            raise unlike(self._plugin, f"{type(source).__name__} has no {', '.join(lacks)}")
        self._source = cast(Source, source)
        self.label = self._source.label

    def parts(self) -> list[SourcePart]:
        try:
            listed: Any = self._source.parts()
        except ValueError:
            raise
        except Exception as error:  # the boundary to code of others
            raise fault(self._plugin, error, "listed its parts") from error
        if not isinstance(listed, list):
            raise unlike(self._plugin, f"parts() returned {type(listed).__name__}, no list")
        for part in cast(list[Any], listed):
            if not (isinstance(part, SourcePart) and part.name and part.version and part.holds in HOLDS):
                raise unlike(self._plugin, "parts() lists something else than SourcePart with a name and a version")
        parts = cast(list[SourcePart], listed)
        if len({part.name for part in parts}) < len(parts):
            raise unlike(self._plugin, "parts() lists two parts of one name")
        if not parts:
            raise ValueError(f"{self.label} has nothing to read. Check traces.source.uri and its options.")
        return sorted(parts)

    def probe(self) -> None:
        if not isinstance(self._source, Probed):
            self.parts()
            return
        try:
            self._source.probe()
        except ValueError:
            raise
        except Exception as error:  # as above
            raise fault(self._plugin, error, "was asked whether it is there") from error

    def remains(self) -> str:
        """What the plug-in says; where it says nothing, that nobody here knows."""
        advice: Any = None
        if isinstance(self._source, External):
            try:
                advice = self._source.remains()
            except Exception as error:  # as above
                raise fault(self._plugin, error, "was asked what remains of a user") from error
        return advice if isinstance(advice, str) and advice else "ask its owner to delete what it has of the user"

    def rows(self, part: SourcePart, digest: Digest) -> Iterator[Rows]:
        """As the protocol says. A row of other types than the table has is rejected by `schema`."""
        counted = _CountedDigest(digest)
        blocks = iter(self._source.rows(part, counted))
        while True:
            try:
                block: Any = next(blocks, None)
            except ValueError:
                raise
            except Exception as error:  # as above
                raise fault(self._plugin, error, f"read {part.name}") from error
            if block is None:
                return
            if not isinstance(block, Rows):
                raise unlike(self._plugin, f"rows() yielded {type(block).__name__}, no Rows")
            if not counted.bytes and (block.traces or block.scores or block.attributes):
                raise unlike(self._plugin, "rows() yields rows and puts nothing into the digest: no change would show")
            yield _checked(block)


class _CountedDigest:
    def __init__(self, digest: Digest) -> None:
        self._digest, self.bytes = digest, 0

    def update(self, data: bytes, /) -> None:
        self._digest.update(data)
        self.bytes += len(data)


def _checked(block: Rows) -> Rows:
    """The block with its rows as they are declared; one that is not becomes a rejection."""
    rejected = list(block.rejected)
    traces = _of(Trace, block.traces, rejected)
    scores, attributes = _of(Score, block.scores, rejected), _of(Attributes, block.attributes, rejected)
    return Rows(traces=traces, rejected=rejected, scores=scores, attributes=attributes)


def _of(kind: type[R], rows: Sequence[R], rejected: list[Rejection]) -> list[R]:
    kept: list[R] = []
    for number, row in enumerate(rows, start=1):
        try:
            checked = msgspec.convert(msgspec.to_builtins(row, builtin_types=(datetime,)), kind)
            if isinstance(checked, Trace) and not all({"role", "content"} <= each.keys() for each in checked.messages):
                raise msgspec.ValidationError("a message has no role or no content")
            kept.append(checked)
        except (msgspec.MsgspecError, TypeError, ValueError) as error:
            line: Any = getattr(row, "line", number)
            # msgspec names the wanted type and the field, never a value
            why = f": {error}" if isinstance(error, msgspec.ValidationError) else ""
            detail = f"the plug-in made no {kind.__name__} of it{why}"
            rejected.append(Rejection(line if isinstance(line, int) else number, Reason.SCHEMA, detail=detail))
    return kept
