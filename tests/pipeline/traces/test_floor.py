"""Wrong sources fail with what is the matter, publish nothing, and are read again when the recipe is mended."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.layout import WATERMARK as NAME
from pipeline.core.storage import Store
from pipeline.recipe.traces import ExportSource, Traces
from pipeline.traces.days import rules_digest
from pipeline.traces.floor import RowCounts, whole
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from pipeline.traces.records import GovernedTraces, Reason
from pipeline.traces.watermark import weak

from .conftest import Run, govern, observation, score, write

pytestmark = pytest.mark.slow

FIRST, SECOND = "observations_v2/2026-01-05.jsonl.gz", "observations_v2/2026-01-06.jsonl.gz"
NEXT_DAY = "2026-01-06 10:00:00.000000"


def many(first: int, last: int, **changes: Any) -> list[dict[str, Any]]:
    return [observation(n, **changes) for n in range(first, last)]


def warned(store: Store, governed: GovernedTraces, floor: float = 0.01) -> list[str]:
    source = ExportSource(kind="langfuse_export", uri="e")
    return weak(store, governed, Traces(source=source, min_admitted_share=floor))


def test_a_source_read_as_another_kind_fails(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, many(1, 60))
    with pytest.raises(ValueError, match="0 of 59 rows") as error:
        govern(store, ExportSource(kind="otel", uri=str(export)), str(export))
    output = str(error.value)
    assert "Rejected: schema 59. Nothing was published." in output and "Mend traces.source (its kind is otel)" in output
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
    with pytest.raises(ValueError, match="Rejected: consent 59"):
        run(consent_key="typo")
    rows = read(store, local_lake(store), first.iteration.dataset, ["trace_id"])
    assert rows.num_rows == 59
    assert run() == first


@pytest.mark.parametrize(
    ("seen", "admitted", "rejected", "below"),
    [
        (0, 0, {}, False),
        (5, 0, {Reason.ERASED: 5}, False),
        (5, 0, {Reason.ERASED: 4, Reason.CONSENT: 1}, True),
        (1000, 10, {Reason.CONSENT: 990}, False),
        (1000, 9, {Reason.CONSENT: 991}, True),
        (10_000, 9, {Reason.CONSENT: 100, Reason.NOT_GENERATION: 9891}, False),
    ],
)
def test_below_the_floor(seen: int, admitted: int, rejected: dict[Reason, int], below: bool) -> None:
    tally = RowCounts("s", seen, admitted, rejected)
    assert tally.below(0.01) is below
    assert not tally.below(0.0)


def test_empty_days_and_files_of_scores_are_no_fault(run: Run, store: Store, export: Path) -> None:
    write(export, FIRST, many(1, 30))
    write(export, SECOND, [])
    write(export, "scores/a.jsonl", [score(1, 1, 1.0), *("{" for _ in range(50))])
    governed = run()
    assert (governed.admitted, governed.rejected) == (29, {Reason.MALFORMED: 50})
    assert warned(store, governed) == []
    assert whole("s", governed.days, {FIRST}).eligible == 29


def test_weak_parts_are_named(run: Run, store: Store, export: Path) -> None:
    """A truncated file, one in another encoding, and one of which next to nothing is admitted."""
    write(export, FIRST, many(1, 60))
    body = "".join(json.dumps(row) + "\n" for row in many(100, 3000, start_time=NEXT_DAY)).encode()
    (export / SECOND).write_bytes(gzip.compress(body)[:-9000])
    rows = [json.dumps(observation(n, input="né" if n % 2 else "ne"), ensure_ascii=False) for n in range(5000, 5100)]
    (export / "observations_v2/latin.jsonl").write_bytes("\n".join(rows).encode("latin-1"))
    write(export, "observations_v2/none.jsonl", many(6000, 6060, metadata={}))
    write(export, "observations_v2/few.jsonl", many(7000, 7003, metadata={}))
    governed = run()
    broken, encoding, none = warned(store, governed)
    assert broken.startswith(f"{SECOND}: it breaks off or")
    assert encoding == "observations_v2/latin.jsonl: 50 of 100 rows cannot be read (malformed 50)"
    assert none == "observations_v2/none.jsonl: 0 of 60 rows were admitted (consent 60)"
    assert warned(store, governed, 0.0) == [broken]
