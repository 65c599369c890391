"""Situations from public reports, through the real readers and gates: no text is admitted that was not said."""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from pipeline.recipe.traces import Traces
from pipeline.traces.batch import BatchBuilder
from pipeline.traces.gates import GateRules, check
from pipeline.traces.sources.open import open_source
from pipeline.traces.sources.protocol import Address

NOW = datetime(2026, 2, 1, tzinfo=UTC)
A = "admitted"


@pytest.fixture(scope="module")
def cases(shared_data: Path) -> Path:
    folder = shared_data.parent / "cases"
    if not folder.is_dir():
        pytest.skip(f"no cases at {folder}")
    return folder


@pytest.mark.shared
@pytest.mark.parametrize(
    ("case", "kind", "verdicts"),
    [
        ("10-*/data", "openai_logs", [A, *["truncated"] * 6, A]),
        ("12-*/data", "openai_logs", [A, *["no_content"] * 3]),
        ("14-*/data", "openai_logs", ["no_content"] * 2),
        ("14-*/data-joined", "openai_logs", [A, A]),
        ("17-*/data", "openai_logs", [A, "no_content", "no_content"]),
        ("19-*/data", "openai_logs", [A, "unreadable"]),
        ("20-*/data", "openai_logs", [A, A, A, "unreadable"]),
        ("21-*/data", "otel", [A, A, *["unreadable"] * 3]),
        ("27-*/java-logging-exporter", "otel", ["schema"]),
        ("27-*/python-console-exporter", "otel", ["malformed"]),
        ("27-*/snake-case", "otel", ["schema"]),
        ("27-*/tempo-api", "otel", ["schema"]),
        ("29-*/data", "langfuse_export", [A, *["no_content"] * 3, "pii"]),
        ("33-*/data", "langfuse_export", [A] * 6),
    ],
)
def test_a_situation_has_its_verdicts(cases: Path, case: str, kind: str, verdicts: list[str]) -> None:
    (folder,) = cases.glob(case)
    settings = Traces.model_validate({"source": {"kind": kind, "uri": str(folder)}})
    source = open_source(Address(settings.source, str(folder)))
    seen: list[tuple[int, str]] = []
    texts: dict[int, str] = {}
    for part in source.parts():
        for block in source.rows(part, hashlib.sha256()):
            batch, unfit = BatchBuilder(settings, part.name).batch(block.traces)
            checked, reasons = check(batch, GateRules(settings, NOW))
            seen += zip(checked["line"].to_pylist(), (str(reason or A) for reason in reasons), strict=True)
            seen += [(rejection.line, str(rejection.reason)) for rejection in (*block.rejected, *unfit)]
            admitted = [row for row, reason in zip(checked.to_pylist(), reasons, strict=True) if reason is None]
            texts |= {row["line"]: row["completion"] for row in admitted}
    assert not any("<" in text for text in texts.values())
    assert [line for line, text in texts.items() if "[" in text] == ([6] if case[:2] == "33" else [])
    assert [reason for _, reason in sorted(seen)] == verdicts
