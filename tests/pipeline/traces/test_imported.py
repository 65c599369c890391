"""Imports in the governed table, alone and with traces: what counts, what is read again, and their labels."""

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.storage import Store
from pipeline.governance.erasure.places import in_source
from pipeline.governance.erasure.records import Person
from pipeline.recipe import Rewards
from pipeline.recipe.sources import ExportSource, ImportSource, RowsSource
from pipeline.recipe.traces import Traces
from pipeline.rewards.label import label_traces
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import materialize, read
from pipeline.traces.records import GovernedTraces, Reason
from pipeline.traces.scope import Producer
from pipeline.traces.sources.protocol import address_of
from tests.contexts import context_of, stage_context

from .conftest import ALONE, CHAMPION, NOW, Run, govern, observation, write

pytestmark = pytest.mark.slow

DAY = date(2026, 1, 2)
VOTES = {"prompt": "q", "chosen": "good", "rejected": "bad", "user": "who"}
ROWS = [{"q": f"Question {n}?", "good": f"Good {n}.", "bad": f"Bad {n}."} for n in range(3)]


def votes(folder: Path, *rows: dict[str, Any], **more: Any) -> ImportSource:
    path = write(folder, "votes.jsonl", rows or ROWS)
    declared = {"uri": str(path), "licence": "MIT", "consent": True, "day": DAY, "fields": VOTES}
    return ImportSource.model_validate({"kind": "pairs", **declared, **more})


def held(store: Store, governed: GovernedTraces) -> list[str]:
    table = read(store, local_lake(store), governed.iteration.dataset, ["trace_id"])
    return sorted(each.replace("imports/1/votes.jsonl", "v") for each in table["trace_id"].to_pylist())


def traces_on(export: Path, *days: int) -> None:
    for day in days:
        row = observation(day, start_time=f"2026-01-{day:02d} 10:00:00.000000")
        write(export, f"observations_v2/2026-01-{day:02d}.jsonl", [row])


ALL = [f"v:{line}#{side}" for line in (1, 2, 3) for side in (0, 1)]


def test_imports_alone_are_a_source(store: Store, tmp_path: Path) -> None:
    source = votes(tmp_path)
    governed = govern(store, source, source.uri)
    assert (governed.seen, governed.admitted, held(store, governed)) == (6, 6, ALL)
    assert govern(store, source, source.uri).iteration == governed.iteration


def test_imports_count_whatever_the_window_and_the_champion(
    run: Run, store: Store, export: Path, tmp_path: Path
) -> None:
    traces_on(export, 2, 5, 6)
    imports = (votes(tmp_path),)
    assert held(store, run(imports=imports)) == ["t2", "t5", "t6", *ALL]
    assert held(store, run(imports=imports, window_days=2)) == ["t5", "t6", *ALL], "without the trace of their day"
    promoted = datetime(2026, 1, 6, tzinfo=UTC)
    assert held(store, run(imports=imports, since=promoted)) == ["t6", *ALL]
    assert held(store, run(imports=imports, attribution="model")) == ALL
    assert held(store, run(window_days=2)) == ["t5", "t6"], "an import that is no longer named is gone"


def test_an_import_that_retention_drops_is_named(store: Store, export: Path, tmp_path: Path) -> None:
    traces_on(export, 10)
    source = ExportSource(kind="langfuse_export", uri=str(export))
    settings = Traces(source=source, imports=(votes(tmp_path),), governed_days=5)
    logged: list[str] = []
    context = stage_context(store, None, logged.append, traces=settings, compute=ALONE)
    governed = materialize(context, address_of(settings, source.uri), Producer(CHAMPION, "tiny"), 0, NOW)
    assert held(store, governed) == ["t10"]
    assert any(
        "WARNING: imports/1/ is of 2026-01-02, which traces.governed_days does not keep" in line for line in logged
    )


def test_an_import_makes_its_own_day_again(run: Run, store: Store, export: Path, tmp_path: Path) -> None:
    traces_on(export, 5)
    before = run(imports=(votes(tmp_path),))
    swapped = votes(tmp_path, fields={**VOTES, "chosen": "bad", "rejected": "good"})
    after = run(imports=(swapped,))
    digests = [{day.day: day.digest for day in each.days} for each in (before, after)]
    assert digests[0]["2026-01-05"] == digests[1]["2026-01-05"]
    assert digests[0]["2026-01-02"] != digests[1]["2026-01-02"]
    table = read(store, local_lake(store), after.iteration.dataset).to_pylist()
    rewards = {
        each["completion"]: json.loads(each["metadata"])["imported_reward"] for each in table if each["day"] == DAY
    }
    assert (rewards["Bad 0."], rewards["Good 0."]) == (1.0, 0.0)


def test_equal_votes_are_one_and_others_are_not(store: Store, tmp_path: Path) -> None:
    vote = {"q": "Q?", "good": "Yes.", "bad": "No."}
    source = votes(tmp_path, vote, vote, {"q": "Q?", "good": "No.", "bad": "Yes."}, {**vote, "who": "ann"})
    governed = govern(store, source, source.uri)
    assert (governed.admitted, governed.rejected) == (6, {Reason.DUPLICATE: 2})


def test_consent_is_declared_for_the_import_alone(run: Run, export: Path, tmp_path: Path) -> None:
    write(export, "observations_v2/a.jsonl", [observation(1), observation(2, metadata={})])
    governed = run(imports=(votes(tmp_path),), answers=("reply",), min_admitted_share=0.0)
    assert governed.rejected == {Reason.HELPER: 2}, "names of calls say nothing of imports"
    governed = run(imports=(votes(tmp_path),))
    assert (governed.admitted, governed.rejected) == (7, {Reason.CONSENT: 1})


def test_a_region_is_declared_or_the_import_is_refused(store: Store, tmp_path: Path) -> None:
    abroad, source = votes(tmp_path, region="eu"), votes(tmp_path)
    assert govern(store, abroad, abroad.uri, regions_allowed=("eu",)).admitted == 6
    with pytest.raises(
        ValueError, match=r"imports/1/: 0 of 6 rows admitted.*region 6. Nothing was .* Mend traces.imports"
    ):
        govern(store, source, source.uri, regions_allowed=("eu",))


def test_a_wrong_source_is_not_hidden_by_imports(run: Run, export: Path, tmp_path: Path) -> None:
    write(export, "observations_v2/a.jsonl", [observation(n, metadata={}) for n in range(4)])
    with pytest.raises(ValueError, match=r"export: 0 of 4 rows admitted.*consent 4"):
        run(imports=(votes(tmp_path),))


def test_a_trace_is_never_taken_for_an_imports(run: Run, export: Path) -> None:
    named = [observation(n, provided_model_name=model) for n, model in enumerate(("imported", "demonstrated", "m"))]
    write(export, "observations_v2/a.jsonl", named)
    governed = run()
    assert (governed.admitted, governed.rejected) == (1, {Reason.SCHEMA: 2})


def test_a_folder_with_the_name_of_an_import_is_refused(store: Store, tmp_path: Path) -> None:
    write(tmp_path / "logs", "imports/1/a.jsonl", [{"q": "Hi", "a": "Hello."}])
    logs = RowsSource(uri=str(tmp_path / "logs"), day=DAY, consent=True, fields={"prompt": "q", "completion": "a"})
    assert govern(store, logs, logs.uri).admitted == 1
    with pytest.raises(
        ValueError, match=r"holds imports/1/a.jsonl: imports/1/ is another source's name. Rename the folder"
    ):
        govern(store, logs, logs.uri, imports=(votes(tmp_path),))


def test_files_that_still_name_a_forgotten_user_are_listed(store: Store, tmp_path: Path) -> None:
    write(tmp_path / "export", "observations_v2/a.jsonl", [observation(1)])
    source = ExportSource(kind="langfuse_export", uri=str(tmp_path / "export"))
    settings = Traces(source=source, imports=(votes(tmp_path, {**ROWS[0], "who": "ann"}, ROWS[1]),))
    remaining = in_source(store, Person.named("ann"), address_of(settings, source.uri))
    assert remaining.remains == (f"{tmp_path}/votes.jsonl/votes.jsonl: 2 rows",)


def test_labels_are_the_imports_own(run: Run, store: Store, export: Path, tmp_path: Path) -> None:
    write(export, "observations_v2/a.jsonl", [observation(1), observation(2, metadata={"user_consent": True})])
    shown = votes(tmp_path, kind="demonstrations", name="own", fields={"prompt": "q", "answer": "good"})
    governed = run(imports=(votes(tmp_path), shown))
    record = label_traces(context_of(store, governed.iteration, rewards=Rewards(), compute=ALONE), None, frozenset())
    labels = pq.read_table(record.dataset.uri).to_pylist()
    found = {(each["profile"], each["origin"], each["final_reward"]) for each in labels if each["origin"]}
    assert found == {
        ("imported", "imports/1 (MIT)", 1.0),
        ("imported", "imports/1 (MIT)", 0.0),
        ("demonstrated", "imports/own (MIT)", 1.0),
    }
    assert {each["user_id"] for each in labels if each["origin"]} == {
        f"trace:{each['trace_id']}" for each in labels if each["origin"]
    }
    assert (record.labelled, record.coverage, record.mean_reward) == (10, 0.5, 0.0), "of the two traces"
