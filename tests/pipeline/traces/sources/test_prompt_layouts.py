"""Prompt sets in the fields that they are published with, and what is left out of them."""

import gzip
import hashlib
import json
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from pipeline.recipe.sources import PromptsSource
from pipeline.traces.rows import Trace
from pipeline.traces.sources.prompts import Prompts
from tests.grading import grade

ODD_ANSWER = "the answer is no text, number, list of texts or option"
ODD_PROBLEM = "the problem is neither a text nor messages of text that end in a user's"
CAME_BEFORE = "the problem came before"
SUM = "What is 12 + 30?"
SETS: dict[str, dict[str, Any]] = {
    "GSM8K": {"question": SUM, "answer": "12 + 30 = <<12+30=42>>42 in all.\n#### 42"},
    "OpenMathInstruct-2": {
        "problem": SUM, "generated_solution": "It is 41 + 1.", "expected_answer": "42", "problem_source": "math",
    },
    "DeepScaleR": {"problem": SUM, "answer": "42", "solution": "Add them."},
    "MATH": {"problem": SUM, "level": "Level 1", "type": "Algebra", "solution": r"It is $\boxed{42}$."},
    "numbers": {"problem": SUM, "answer": 42},
    "verl": {"prompt": [{"role": "user", "content": SUM}], "reward_model": {"style": "rule", "ground_truth": "42"}},
    "TRL": {"prompt": [{"role": "user", "content": SUM}], "solution": "$42$"},
}  # fmt: skip


class Problem(NamedTuple):
    messages: list[dict[str, str]]
    reference: str
    metadata: dict[str, Any]

    @classmethod
    def of(cls, trace: Trace) -> Self:
        metadata = json.loads(trace.metadata)
        assert metadata.pop("licence") == "MIT"
        return cls(trace.messages, metadata.pop("expected_answer"), metadata)


def write(path: Path, rows: list[Any]) -> Path:
    path.write_text(
        "".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows), encoding="utf-8"
    )
    return path


def read(path: Path, **fields: Any) -> tuple[list[Problem], Counter[str]]:
    section = PromptsSource.model_validate(
        {"uri": str(path), "licence": "MIT", "consent": True, "day": "2026-01-05", "fields": fields}
    )
    source = Prompts(str(path), section)
    blocks = [rows for part in source.parts() for rows in source.rows(part, hashlib.sha256())]
    rejected = Counter(rejection.detail for rows in blocks for rejection in rows.rejected)
    return [Problem.of(trace) for rows in blocks for trace in rows.traces], rejected


@pytest.mark.parametrize("name", SETS)
def test_prompt_sets_are_read_as_they_are_given(tmp_path: Path, name: str) -> None:
    ((row,), rejected) = read(write(tmp_path / "set.jsonl", [SETS[name]]))
    assert row.messages == [{"role": "user", "content": SUM}] and not rejected
    right, wrong = grade([("So it is.\n#### 42", row.reference), ("#### 41", row.reference)])
    assert (right.outcome, wrong.outcome) == ("correct", "wrong")


def test_a_file_that_is_one_array_is_read_as_published(tmp_path: Path) -> None:
    path = tmp_path / "deepscaler.json"
    path.write_text(json.dumps([SETS["DeepScaleR"], "no problem", {"problem": "2 + 2?", "answer": "4"}]))
    rows, rejected = read(path)
    assert [row.reference for row in rows] == ["42", "4"] and rejected == {"Expected `object`, got `str`": 1}
    path.write_text(path.read_text()[:-1])
    rows, rejected = read(path)
    assert len(rows) == 2 and rejected.total() == 2


@pytest.mark.parametrize(
    ("right", "wrong", "options"),
    [
        (1, "C", ["Red", "Green"]),
        ("B", 2, ["Red", "Green"]),
        ("Green", "Blue", ["Red", "Green"]),
        (7, 8, [5, 7]),
        ("7", True, ["5", "7"]),
    ],
)
def test_options_stand_below_their_problem(tmp_path: Path, right: Any, wrong: Any, options: list[Any]) -> None:
    rows = [
        {"question": f"Which, {n}?", "choices": options, "answer": answer} for n, answer in enumerate([right, wrong])
    ]
    path = write(tmp_path / "set.jsonl", rows)
    ((row,), rejected) = read(path, options="choices")
    assert row.messages == [{"role": "user", "content": f"Which, 0?\n\nA) {options[0]}\nB) {options[1]}"}]
    assert (row.reference, row.metadata, rejected) == ("B", {"verifier": "choice"}, {ODD_ANSWER: 1})
    assert read(path, metadata=("choices",))[0][0].messages[0]["content"] == "Which, 0?"


def test_messages_are_a_problem_as_they_stand(tmp_path: Path) -> None:
    brief, asked = {"role": "system", "content": "Brief."}, {"role": "user", "content": SUM}
    image = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/y.png"}}]}
    prompts = [
        [brief, asked],
        [asked],
        [asked, {"role": "assistant", "content": "42"}],
        [image],
        [SUM],
        [],
        "a [b] {c}",
    ]
    path = write(tmp_path / "set.jsonl", [{"ask": each, "held": {"gold": ["42"]}} for each in prompts])
    rows, rejected = read(path, prompt="ask", reference="held.gold", system="Be exact.")
    exact = {"role": "system", "content": "Be exact."}
    assert [row.messages for row in rows] == [
        [brief, asked],
        [exact, asked],
        [exact, {**asked, "content": "a [b] {c}"}],
    ]
    assert rejected == {ODD_PROBLEM: 4}


def test_a_list_of_answers_is_a_reference_of_which_any_is_right(tmp_path: Path) -> None:
    ((row,), _) = read(write(tmp_path / "set.jsonl", [{"question": SUM, "answer": ["42", "42.0"]}]))
    assert [each.outcome for each in grade([("#### 42", row.reference)])] == ["correct"]


def test_fields_can_be_named(tmp_path: Path) -> None:
    path = write(tmp_path / "set.jsonl", [{"ask": SUM, "gold": "42", "tier": 3, "answer": "no"}])
    ((row,), _) = read(path, prompt="ask", reference="gold", metadata=("tier", "other"), system="Be brief.")
    assert row == ([{"role": "system", "content": "Be brief."}, {"role": "user", "content": SUM}], "42", {"tier": 3})


def test_what_is_left_out_is_counted(tmp_path: Path) -> None:
    rows = [
        {"problem": SUM, "answer": "42"}, {"problem": f" {SUM}  ", "answer": "42 "}, {"problem": SUM, "answer": "43"},
        {"problem": "a", "answer": " "}, {"problem": "b", "answer": None}, {"problem": "c"}, "{torn", "[1]", "",
        {"problem": "", "answer": "1"}, {"problem": ["d"], "answer": "1"}, {"problem": "e", "answer": 0},
    ]  # fmt: skip
    prompts, rejected = read(write(tmp_path / "set.jsonl", rows))
    assert [(row.messages[0]["content"], row.reference) for row in prompts] == [(SUM, "42"), ("e", "0")]
    assert rejected == {
        CAME_BEFORE: 1, f"{CAME_BEFORE}, with another answer": 1, "without an answer": 3, "without a problem": 1,
        ODD_PROBLEM: 1, "Expected `object`, got `array`": 1,
        "JSON is malformed: object keys must be strings (byte 1)": 1}  # fmt: skip


def test_splits_are_read_apart(tmp_path: Path) -> None:
    """Else the problems that a gate asks would be trained on."""
    one = write(tmp_path / "one.jsonl", [SETS["MATH"]])
    for split in ("train", "test"):
        (tmp_path / "MATH" / split).mkdir(parents=True)
        write(tmp_path / "MATH" / split / "algebra.jsonl", [SETS["MATH"]])
    (tmp_path / "data").mkdir()
    for name in ("train-00000-of-00001", "test-00000-of-00001"):
        pq.write_table(pa.Table.from_pylist([SETS["MATH"]]), tmp_path / "data" / f"{name}.parquet")
    for folder in (tmp_path / "MATH", tmp_path / "data"):
        with pytest.raises(ValueError, match=r"the splits test, train and the recipe names none\."):
            read(folder)
        with pytest.raises(ValueError, match=r"and no 'validation'\. Name one: fields\.split"):
            read(folder, split="validation")
        assert read(folder, split="train") == read(one)
    (tmp_path / "more.jsonl.gz").write_bytes(gzip.compress(b'{"question": "q", "answer": "2"}\n'))
    assert read(tmp_path / "more.jsonl.gz")[0][0].reference == "2"


@pytest.mark.parametrize(
    ("rows", "fields", "message"),
    [
        ([{"text": "x"}], {}, r"has the fields text\. Name those of .* looks like corpus"),
        ([{"question": "x"}], {"reference": "gold"}, r"has the fields question\. Name those of"),
        ([{"question": "x", "answer": "1"}], {"prompt": "ask"}, r"has the fields question, answer\. Name those of"),
        ([{"question": "x", "answer": "1", "passage": "y"}], {}, r"field passage beside its problem\. Name"),
        (
            [{"messages": [{"role": "user", "content": "x"}], "reference_answer": {"n": 1}}],
            {},
            r"an object in .* fields\.reference: reference_answer\.n\.",
        ),
    ],
)
def test_a_set_without_its_fields_is_refused(tmp_path: Path, rows: list[Any], fields: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(write(tmp_path / "set.jsonl", rows), **fields)


@pytest.mark.shared
def test_gsm8k_is_read_whole(shared_data: Path) -> None:
    prompts, rejected = read(shared_data / "gsm8k" / "test.jsonl")
    assert len(prompts) + rejected.total() == 1319 and len(prompts) > 1300
    assert all("####" in row.reference for row in prompts)
