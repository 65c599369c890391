"""Rows of Parquet files through the stage `traces`, and the rewards that they bring as labels."""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.core.storage import Store
from pipeline.recipe import Compute, Rewards, load
from pipeline.recipe.sources import RowsSource
from pipeline.rewards.label import label_traces
from pipeline.rewards.records import Finding, RewardLabels
from pipeline.rewards.samples import samples
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read as read_dataset
from pipeline.traces.records import GovernedTraces, Reason
from tests.contexts import context_of
from tests.pipeline.traces.conftest import govern

pytestmark = pytest.mark.slow

EKS = "What are the advantages of EKS Auto Mode?"
COLUMNS = {"prompt": "input", "completion": "output"}
GIVEN = {"fields": {**COLUMNS, "metadata": "final_reward"}, "consent": True}
AWS = "AWS manages the nodes."


def row(output: str, reward: float | None, prompt: Any = EKS, **more: Any) -> dict[str, Any]:
    return {"input": prompt, "output": output, "final_reward": reward, **more}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def run(store: Store, uri: object, **section: Any) -> GovernedTraces:
    source = RowsSource(uri=str(uri), licence="own", day=date(2026, 1, 5), **section)
    return govern(store, source, source.uri)


def rows_of(store: Store, governed: GovernedTraces) -> list[dict[str, Any]]:
    return read_dataset(store, local_lake(store), governed.iteration.dataset).to_pylist()


def label(store: Store, governed: GovernedTraces) -> RewardLabels:
    rewards, alone = Rewards(given_key="final_reward"), Compute(workers=1)
    return label_traces(context_of(store, governed.iteration, rewards=rewards, compute=alone), None, frozenset())


def test_a_reward_is_the_label_as_it_was_given(store: Store, tmp_path: Path) -> None:
    rows = [row(AWS, 0.4155552671, expected_answer=None), row("#### 4", 0.0, "2 + 2?", expected_answer="4")]
    rows += [row("It is convenient.", None), row("I don't know.", float("nan"))]
    path = write(tmp_path / "set" / "part-0.parquet", rows)
    fields = {**COLUMNS, "metadata": ["final_reward", "expected_answer"]}
    governed = run(store, path.parent, consent=True, fields=fields)
    first = next(each for each in rows_of(store, governed) if each["completion"] == AWS)
    assert [message["content"] for message in first["messages"]] == [EKS]
    assert (first["day"], first["consent"], first["user_id"]) == (date(2026, 1, 5), True, None)
    assert first["source_file"] == "part-0.parquet"
    assert json.loads(first["metadata"])["licence"] == "own"
    labels = label(store, governed)
    table = {each["completion"]: each for each in pq.read_table(labels.dataset.uri).to_pylist()}
    assert [table[text]["final_reward"] for text in (AWS, "#### 4")] == [0.4155552671, 0.0]
    assert {each["profile"] for each in table.values()} == {"given"}
    assert json.loads(table[AWS]["weights"]) == {"given": 1.0}
    assert table["#### 4"]["outcome"] == "correct", "checked, but not graded again"
    assert (labels.labelled, labels.unlabelled) == (2, {"given_null": 2})


def test_a_fresh_answer_does_not_bring_the_logged_ones_reward(store: Store, tmp_path: Path) -> None:
    governed = run(store, write(tmp_path / "set.parquet", [row(AWS, 0.9)]), **GIVEN)
    (logged,) = samples(rows_of(store, governed), {}, Rewards(given_key="final_reward"))
    fresh = logged.answered("It is convenient.")
    assert (logged.profile, logged.given, fresh.profile, fresh.given) == ("given", Finding(0.9), "fresh", None)


def test_a_reward_in_single_precision_is_read_as_written(store: Store, tmp_path: Path) -> None:
    table = pa.table({"input": [EKS], "output": [AWS], "final_reward": pa.array([0.7], pa.float32())})
    pq.write_table(table, tmp_path / "set.parquet")
    (found,) = rows_of(store, run(store, tmp_path / "set.parquet", **GIVEN))
    assert json.loads(found["metadata"])["final_reward"] == 0.7, "on the chosen side of a pair"


@pytest.mark.parametrize("reward", [1.5, -0.1, "good"])
def test_another_scale_is_refused(store: Store, tmp_path: Path, reward: Any) -> None:
    path = write(tmp_path / "set.parquet", [row("AWS manages the nodes.", reward)])
    with pytest.raises(ValueError, match=r"brings the reward .* which is no number from 0 to 1. Write rewards on that"):
        label(store, run(store, path, **GIVEN))


def test_rows_say_consent_owner_and_time_themselves(store: Store, tmp_path: Path) -> None:
    chat = json.dumps([{"role": "system", "content": "Be brief."}, {"role": "user", "content": EKS}])
    told = {"who": "u1", "user_consent": True, "at": datetime(2026, 1, 7, 12)}
    rows = [row("Yes.", 0.9, chat, **told), row("No.", 0.1, **{**told, "user_consent": None})]
    rows += [row("Hm.", 0.5, **{**told, "at": None}), row("", 0.1, **told)]
    fields = {**COLUMNS, "user": "who", "time": "at", "metadata": "user_consent"}
    governed = run(store, write(tmp_path / "set.parquet", rows), fields=fields)
    assert governed.rejected == {Reason.CONSENT: 1, Reason.EMPTY_OUTPUT: 1}
    found = {each["completion"]: each for each in rows_of(store, governed)}
    assert {text: (each["user_id"], each["day"].day) for text, each in found.items()} == {
        "Yes.": ("u1", 7),
        "Hm.": ("u1", 5),
    }
    assert [message["role"] for message in found["Yes."]["messages"]] == ["system", "user"]


def test_changed_columns_are_read_again(store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "set.parquet", [row("Yes.", 0.9, better="Yes, it is.")])
    run(store, path, consent=True, fields=COLUMNS)
    (found,) = rows_of(store, run(store, path, consent=True, fields={**COLUMNS, "completion": "better"}))
    assert found["completion"] == "Yes, it is."


@pytest.mark.parametrize(
    ("name", "fields", "words"),
    [
        ("set/a.parquet", {"prompt": "q", "completion": "a"}, "0 of 1 rows admitted.* Rejected: no_content 1"),
        ("set/a.avro", COLUMNS, "holds a.avro, which is none of .jsonl, .ndjson, .json, .csv, .parquet"),
        ("other/a.parquet", COLUMNS, "is not there"),
    ],
)
def test_what_is_no_such_set_is_refused(
    store: Store, tmp_path: Path, name: str, fields: dict[str, Any], words: str
) -> None:
    write(tmp_path / name, [row("Yes.", 0.9)])
    with pytest.raises(ValueError, match=words):
        run(store, tmp_path / "set", consent=True, fields=fields)


def test_a_set_in_s3_is_read(bucket: str, store: Store, tmp_path: Path) -> None:
    path = write(tmp_path / "set.parquet", [row("Yes.", 0.9)])
    boto3.client("s3").upload_file(str(path), bucket, "labelled-dataset/part-0.parquet")
    assert run(store, f"s3://{bucket}/labelled-dataset", **GIVEN).admitted == 1


def test_a_reward_that_no_column_holds_is_refused() -> None:
    recipe = Path(__file__).parents[4] / "jobs" / "recipes" / "own.yaml"
    source = "traces.source={kind: rows, uri: s3://lake/labelled, fields: {prompt: input, completion: output}}"
    with pytest.raises(ValueError, match=r"fields.metadata keeps nothing. Add it."):
        load(recipe, [source, "rewards.given_key=final_reward"])
