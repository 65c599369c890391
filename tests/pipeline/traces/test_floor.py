"""Wrong sources, and rows that a model cannot be shown, are refused by name and publish nothing."""

import shutil
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from pipeline.core.layout import WATERMARK as NAME
from pipeline.core.storage import ModelRef, Store
from pipeline.demo import MODEL_DIR
from pipeline.demo.desk import MODEL_DIR as DESK_DIR
from pipeline.recipe import Selection
from pipeline.recipe.sources import ExportSource
from pipeline.recipe.traces import Traces
from pipeline.traces.days import rules_digest
from pipeline.traces.detect import refuse_below_floor
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from pipeline.traces.records import DayReport, FileReport, Reason
from pipeline.traces.unrendered import refuse_unrendered_rows
from tests.contexts import stage_context

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


USER = {"role": "user", "content": "Where is A7?"}
TOOL = {"type": "function", "function": {"name": "lookup", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": '{"order": "A7"}'}}
BROKEN = {"id": "c", "type": "function", "function": {"name": "lookup", "arguments": "{"}}
CALLING = {"role": "assistant", "content": None, "tool_calls": [CALL]}
RETURNED = {"role": "tool", "tool_call_id": "c", "content": "sent"}
TURNS = [USER, {"role": "assistant", "content": "Which one?"}, {"role": "user", "content": "A7."}]


def rows() -> list[dict[str, Any]]:
    return [
        observation(1),
        observation(2, input={"messages": [USER], "tools": [TOOL]}, output={"role": "assistant", "content": "Sent."}),
        observation(3, input=[USER], output=CALLING),
        observation(4, input=[USER, CALLING, RETURNED], output={"role": "assistant", "content": "It is sent."}),
        observation(5, input=[USER], output={**CALLING, "tool_calls": [BROKEN]}),
        observation(6, input=TURNS, output={"role": "assistant", "content": "Sent."}),
    ]


def refuse(store: Store, run: Run, folder: Path, tools: str = "train") -> None:
    iteration = run(champion=ModelRef(uri=str(folder), digest="c" * 64)).iteration
    selection = Selection.model_validate({"tools": tools})
    refuse_unrendered_rows(stage_context(store, selection=selection), iteration)


def template(folder: Path, text: str) -> Path:
    copied = Path(shutil.copytree(MODEL_DIR, folder))
    (copied / "chat_template.jinja").write_text(text)
    return copied


def test_rows_with_tools_are_refused_by_name_and_number(run: Run, store: Store, export: Path) -> None:
    write(export, "observations_v2/a.jsonl", rows())
    with pytest.raises(ValueError) as refused:
        refuse(store, run, MODEL_DIR)
    assert str(refused.value) == (
        f"The chat template of {MODEL_DIR} leaves out or refuses calls of tools (2 of 6 rows), the definitions of "
        "tools (1 of 6 rows): the model would be trained on conversations that it never had. Set "
        "base_model.chat.template to a file that renders them, or selection.tools to leave_out, which leaves rows with "
        "tools out."
    )
    refuse(store, run, MODEL_DIR, "leave_out")
    refuse(store, run, DESK_DIR)


def test_a_template_of_one_turn_is_refused_for_several(run: Run, store: Store, export: Path, tmp_path: Path) -> None:
    last = template(tmp_path / "last", "{{ messages[-1].content }}")
    write(export, "observations_v2/a.jsonl", rows())
    with pytest.raises(ValueError, match=r"refuses earlier turns \(1 of 6 rows\).*renders them\.$"):
        refuse(store, run, last, "leave_out")
    plain, offered = rows()[:2]
    write(export, "observations_v2/a.jsonl", [plain, {**offered, "metadata": {"user_consent": "false"}}])
    refuse(store, run, last)
    refuse(store, run, MODEL_DIR)  # a withdrawn row counts for nothing


def test_a_token_without_a_row_is_refused_by_name(
    run: Run, store: Store, export: Path, family: Callable[[str], Path]
) -> None:
    lacking = family("rowsfewer2")
    asked = [{"role": "user", "content": "What is <tool_call>?"}]
    write(export, "observations_v2/a.jsonl", [observation(1), observation(2, input=asked)])
    with pytest.raises(ValueError, match=r"has no row for <tool_call> \(1 of 2 rows\)\. Resize it"):
        refuse(store, run, lacking)
