"""The embedded production: an export, and what the gateway served beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.traces.sources.embedded import EmbeddedProduction

from .conftest import observation, read, write
from .test_otel import ANSWERED, ASKED, request, span

ANSWER = {"gen_ai.input.messages": ASKED, "gen_ai.output.messages": ANSWERED}


def test_the_export_and_what_was_served_are_one_source(tmp_path: Path) -> None:
    write(tmp_path, "observations_v2/2026-01-05.jsonl.gz", [observation(1)])
    assert [trace.trace_id for trace in read(EmbeddedProduction(str(tmp_path))).traces] == ["t1"]
    write(tmp_path, "served/arithmetic/2026-01-06-1.jsonl", [request(span(ANSWER))])
    source = EmbeddedProduction(str(tmp_path))
    names = [part.name for part in source.parts()]
    assert names == ["observations_v2/2026-01-05.jsonl.gz", "served/arithmetic/2026-01-06-1.jsonl"]
    rows = read(source)
    assert rows.rejected == []
    assert [trace.trace_id for trace in rows.traces] == ["t1", "5b8efff798038103d269b633813fc60c"]


def test_mirrored_answers_are_no_part_of_it(tmp_path: Path) -> None:
    write(tmp_path, "observations_v2/2026-01-05.jsonl.gz", [observation(1)])
    write(tmp_path, "mirrored/arithmetic/2026-01-06-1.jsonl", [request(span(ANSWER))])
    assert len(EmbeddedProduction(str(tmp_path)).parts()) == 1


def test_without_an_export_there_is_no_production(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="observations_v2"):
        EmbeddedProduction(str(tmp_path)).parts()
