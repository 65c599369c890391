"""Recognisers of names over admitted rows: what is kept of them, what they cost, and that nothing else changes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline import layout
from pipeline.recipe import Compute
from pipeline.recipe.traces import LangfuseExportSource, Traces
from pipeline.section import Operational, settings
from pipeline.storage import Store, digest_json
from pipeline.traces import materialize
from pipeline.traces.days import rules_digest
from pipeline.traces.gates import VERSION
from pipeline.traces.lake import local_lake
from pipeline.traces.pii import recognisers
from pipeline.traces.pii.recognisers import check_recognisers, recognise
from pipeline.traces.records import DayReport, GovernedTraces
from pipeline.traces.rows import SCHEMA

from ..conftest import Run, observation, write
from .small_recogniser import Names

pytestmark = pytest.mark.slow

OWN = "tests.pipeline.traces.pii.small_recogniser:Names"
FILE = "observations_v2/2026-01-05.jsonl"


@pytest.fixture(autouse=True)
def _fresh() -> None:
    recognisers._counted.cache_clear()  # pyright: ignore[reportPrivateUsage]
    Names.seen.clear()


def rows_of(store: Store, governed: GovernedTraces) -> dict[str, Any]:
    table = materialize.read(store, local_lake(store), governed.iteration.dataset, ["trace_id", "recognised"])
    return dict(zip(table["trace_id"].to_pylist(), table["recognised"].to_pylist(), strict=True))


def asked(number: int, text: str, answer: str, **changes: Any) -> dict[str, Any]:
    return observation(number, input=json.dumps([{"role": "user", "content": text}]), output=answer, **changes)


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_admitted_rows_are_looked_at_and_counted(run: Run, store: Store, export: Path, workers: int) -> None:
    rows = [
        asked(1, "I am Ann, and Ann lives in Rose Street", "Hello Ann"),
        asked(2, "Who is Bob?", "Nobody, mail ann@example.com"),
        asked(3, "Ann said no", "Ann", metadata={}),
        asked(4, "raise it", "odd"),
        asked(5, "Ann failed", "Ann", level="ERROR"),
    ]
    write(export, FILE, rows)
    governed = run(recognisers=(OWN,), compute=Compute(workers=workers))
    assert (governed.seen, governed.admitted) == (5, 3)
    recognised = {id: json.loads(text)[OWN] for id, text in rows_of(store, governed).items()}
    assert recognised == {"t1": {"LOCATION": 1, "PERSON": 3}, "t2": {}, "t4": {"FAILED": 1, "OTHER": 1}}
    (report,) = governed.days
    assert report.recognised is not None and report.recognised.rows == 3 and report.recognised.cpu_s >= 0
    assert report.recognised.kinds == {"FAILED": 1, "LOCATION": 1, "OTHER": 1, "PERSON": 3}
    assert report.recognised.line().startswith("FAILED 1, LOCATION 1, OTHER 1, PERSON 3 in 3 rows, ")
    if workers == 1:
        assert not [text for text in Names.seen if "said no" in text or "failed" in text], "rejected rows are not read"
        assert not [text for text in Names.seen if "@" in text], "it is given what the mask left"
    assert store.read(layout.day_report("2026-01-05"), DayReport) == report


def test_nothing_is_kept_of_a_text(run: Run, store: Store, export: Path) -> None:
    write(export, FILE, [asked(1, "odd Ann Secretname", "raise Secretname")])
    governed = run(recognisers=(OWN,))
    (text,) = rows_of(store, governed).values()
    assert "Secretname" not in text + governed.days[0].model_dump_json() and "odd" not in text


def test_without_one_everything_is_as_before(run: Run, store: Store, export: Path) -> None:
    write(export, FILE, [asked(1, "I am Ann", "Hello")])
    governed = run()
    assert rows_of(store, governed) == {"t1": None} and not Names.seen
    assert "recognised" not in governed.days[0].model_dump()
    section = Traces(source=LangfuseExportSource(uri="/a"))
    elsewhere = {"source", "window_days", "attribution", "min_admitted_share", "lake", "retention", "recognisers"}
    assert rules_digest(section) == digest_json([VERSION, section.model_dump(mode="json", exclude=elsewhere)])
    assert "recognisers" not in settings(section, Operational)


def test_another_recogniser_makes_the_days_again(run: Run, store: Store, export: Path) -> None:
    write(export, FILE, [asked(1, "I am Ann", "Hello")])
    first = run()
    second = run(recognisers=(OWN,))
    assert first.iteration.dataset.digest != second.iteration.dataset.digest
    assert json.loads(rows_of(store, second)["t1"]) == {OWN: {"PERSON": 1}}
    assert run(recognisers=(OWN,)) == second
    assert run() == first


def test_calls_of_tools_are_looked_at(tmp_path: Path) -> None:
    message = {"role": "assistant", "content": "", "tool_calls": '[{"arguments": "Ann"}]'}
    row = {"messages": [message], "completion": "", "tool_calls": '[{"arguments": "Rose Street"}]', "reference": "Ann"}
    fields = [SCHEMA.field(name) for name in row]
    batch = pa.RecordBatch.from_pylist([row], schema=pa.schema(fields))
    assert recognise(batch, [OWN]).kinds == {"PERSON": 2, "LOCATION": 1}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "presido",
            r"recognisers, presido: give one of presidio, presidio_patterns, or a class as package",
        ),
        ("no_such_module:Names", r"cannot be made \(ModuleNotFoundError: .*Install the package that has it"),
        (OWN.replace("Names", "Nobody"), r"cannot be made \(AttributeError"),
        (OWN.replace("Names", "Broken"), r"cannot be made \(KeyError: 'no model'\)"),
        (OWN.replace("Names", "Silent"), r"has no method analyze\(text, language\)\. Give it Presidio's interface"),
    ],
)
def test_one_that_cannot_be_used_stops_the_stage(run: Run, store: Store, export: Path, name: str, message: str) -> None:
    write(export, FILE, [asked(1, "I am Ann", "Hello")])
    with pytest.raises(ValueError, match=message):
        run(recognisers=(name,))
    assert not store.path(layout.WATERMARK).exists()


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A small model of spaCy's that knows one name, installed under the name of the smallest English one."""
    spacy = pytest.importorskip("spacy", reason="Presidio needs the extra `pii`")
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns([{"label": "PERSON", "pattern": "Ann Smith"}])
    (tmp_path / "en_core_web_sm").mkdir()
    nlp.to_disk(tmp_path / "en_core_web_sm" / "data")
    (tmp_path / "en_core_web_sm" / "__init__.py").write_text(
        "import spacy\nfrom pathlib import Path\n"
        "def load(**options):\n    return spacy.load(Path(__file__).parent / 'data', **options)\n"
    )
    record = tmp_path / "en_core_web_sm-3.8.0.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: en_core_web_sm\nVersion: 3.8.0\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    recognisers._loaded.cache_clear()  # pyright: ignore[reportPrivateUsage]


def test_presidio_counts_names(model: None, run: Run, store: Store, export: Path) -> None:
    pytest.importorskip("presidio_analyzer", reason="needs the extra `pii`")
    write(export, FILE, [asked(1, "I am Ann Smith, 14 years old", "Hello Ann Smith"), asked(2, "What is 1 + 1?", "2")])
    governed = run(recognisers=("presidio",))
    recognised = rows_of(store, governed)
    assert json.loads(recognised["t1"])["presidio"]["PERSON"] == 2
    assert "PERSON" not in json.loads(recognised["t2"])["presidio"]
    sys.modules.pop("en_core_web_sm", None)
    recognisers._loaded.cache_clear()  # pyright: ignore[reportPrivateUsage]


def test_presidio_without_a_model_says_so() -> None:
    spacy = pytest.importorskip("spacy", reason="Presidio needs the extra `pii`")
    if any(spacy.util.is_package(f"en_core_web_{size}") for size in ("trf", "lg", "md", "sm")):
        pytest.skip("a model of spaCy's is installed")
    recognisers._loaded.cache_clear()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ValueError, match=r"without one Presidio finds no names\. Run python -m spacy download en_core"):
        check_recognisers(["presidio"])


def test_presidios_patterns_count_what_they_know() -> None:
    pytest.importorskip("presidio_analyzer", reason="needs the extra `pii`")
    fields = [SCHEMA.field(name) for name in ("messages", "completion", "tool_calls", "reference")]
    row = {"messages": [], "completion": "Pay with 4111 1111 1111 1111", "tool_calls": None, "reference": None}
    batch = pa.RecordBatch.from_pylist([row], schema=pa.schema(fields))
    assert recognise(batch, ["presidio_patterns"]).kinds == {"CREDIT_CARD": 1}
