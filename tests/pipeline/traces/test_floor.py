"""Wrong sources fail with what is the matter, publish nothing, and are read again when the recipe is mended."""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.layout import WATERMARK as NAME
from pipeline.core.storage import Store
from pipeline.recipe.sources import ExportSource
from pipeline.recipe.traces import Traces
from pipeline.traces.days import rules_digest
from pipeline.traces.detect import refuse_below_floor
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from pipeline.traces.records import DayReport, FileReport, Reason

from .conftest import Run, govern, observation, score, write

pytestmark = pytest.mark.slow

FIRST, SECOND = "observations_v2/2026-01-05.jsonl.gz", "observations_v2/2026-01-06.jsonl.gz"


def many(first: int, last: int, **changes: Any) -> list[dict[str, Any]]:
    return [observation(n, **changes) for n in range(first, last)]


def test_a_source_read_as_another_kind_fails(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, many(1, 60))
    with pytest.raises(ValueError, match="0 of 59 rows") as error:
        govern(store, ExportSource(kind="otel", uri=str(export)), str(export))
    output = str(error.value)
    assert "Rejected: schema 59. Nothing was published." in output
    assert f"{export} looks like langfuse_export (" in output and "Mend traces.source" not in output
    assert f"`pt import {export}` writes the section that reads it. Or lower traces.min_admitted_share" in output
    assert not store.path(NAME).exists() and not store.path("traces", "days").exists()
    wrong = govern(store, ExportSource(kind="otel", uri=str(export)), str(export), min_admitted_share=0.0)
    assert (wrong.seen, wrong.admitted, store.path(NAME).exists()) == (59, 0, True)
    assert run().admitted == 59
    assert run().rejected == {}, "what another reader read is read again"


def test_the_reader_is_one_of_the_rules() -> None:
    uri = "/somewhere"
    exported, spans = ExportSource(kind="langfuse_export", uri=uri), ExportSource(kind="otel", uri=uri)
    assert rules_digest(Traces(source=exported)) != rules_digest(Traces(source=spans))
    moved = ExportSource(kind="langfuse_export", uri="/elsewhere")
    assert rules_digest(Traces(source=moved)) == rules_digest(Traces(source=exported))
    demo = Traces.model_validate({"source": {"kind": "demo"}, "attribution": "none", "min_admitted_share": 0.5})
    assert rules_digest(demo) == rules_digest(Traces(source=exported, regions_allowed=("us",)))


def test_a_wrong_recipe_does_not_empty_the_table(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, many(1, 60))
    first = run()
    with pytest.raises(ValueError, match=r"Rejected: consent 59.*Mend traces.source \(its kind is langfuse_export\)"):
        run(consent_key="typo")
    rows = read(store, local_lake(store), first.iteration.dataset, ["trace_id"])
    assert rows.num_rows == 59
    assert run() == first


def counts_of(seen: int, admitted: int, rejected: dict[Reason, int]) -> DayReport:
    file = FileReport(name="f", sha256="", bytes=1, seen=seen, admitted=admitted, rejected=rejected)
    return DayReport(day="2026-01-05", rules="", digest="", files=(file,))


@pytest.mark.parametrize(
    ("counts", "below"),
    [
        (counts_of(0, 0, {}), False),
        (counts_of(5, 0, {Reason.ERASED: 5}), False),
        (counts_of(5, 0, {Reason.ERASED: 4, Reason.CONSENT: 1}), True),
        (counts_of(1000, 10, {Reason.CONSENT: 990}), False),
        (counts_of(1000, 9, {Reason.CONSENT: 991}), True),
        (counts_of(10_000, 9, {Reason.CONSENT: 100, Reason.NOT_GENERATION: 9891}), False),
    ],
)
def test_below_the_floor(counts: DayReport, below: bool) -> None:
    source = ExportSource(kind="langfuse_export", uri="e")
    with pytest.raises(ValueError, match=r"floor of 1%") if below else nullcontext():
        refuse_below_floor("s", [counts], {"f"}, Traces(source=source))
    refuse_below_floor("s", [counts], {"f"}, Traces(source=source, min_admitted_share=0.0))
    refuse_below_floor("s", [counts], set(), Traces(source=source))


def test_empty_days_and_files_of_scores_are_no_fault(run: Run, export: Path) -> None:
    write(export, FIRST, many(1, 30))
    write(export, SECOND, [])
    write(export, "scores/a.jsonl", [score(1, 1, 1.0), *("{" for _ in range(50))])
    governed = run(min_admitted_share=1.0)
    assert (governed.admitted, governed.rejected) == (29, {Reason.MALFORMED: 50})
