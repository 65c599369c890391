"""Published data sets: each preset reads the file as its publisher has it. The files are stand-ins (published.py)."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from evals.runner import sampling
from evals.suites import Suite, suite
from pipeline.core.storage import Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import ItemsSuite, preset_suite
from pipeline.rewards.verifiers import VerifierTask
from tests.grading import grade

from .published import COUNT, FORMATS, WRONG, published, save, write


def read(path: Path, preset: str, **changes: Any) -> Suite:
    return suite(Store(path.parent), preset_suite(preset, path=str(path), **{"sha256": "", **changes}), 1)


@pytest.mark.parametrize("name", FORMATS)
def test_each_file_is_read_as_it_is_published(tmp_path: Path, name: str) -> None:
    rows, asked = published(name), read(write(tmp_path, name), FORMATS[name][1])
    assert len(asked.items) == COUNT
    text = {"gsm8k": "question", "gpqa": "Question"}.get(name, "problem")
    assert all(item.messages[0]["content"].startswith(row[text]) for item, row in zip(asked.items, rows, strict=True))
    field = {"math500": "level", "aime": "year", "gpqa": "High-level domain"}.get(name)
    kinds = {str(row[field]) for row in rows} if field else {""}
    assert Counter(item.slice for item in asked.items) == dict.fromkeys(kinds, COUNT // len(kinds))


def test_a_known_file_is_pinned_by_its_digest(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="and the recipe says 35dc41080a36"):
        suite(Store(tmp_path), preset_suite("math500", path=str(write(tmp_path, "math500"))), 1)


@pytest.mark.parametrize("ending", ["json", "parquet", "csv"])
def test_a_suite_is_the_same_in_each_format(tmp_path: Path, ending: str) -> None:
    rows = [{"prompt": f'"{n}",\nand {n}?', "reference": str(n), "slice": "a" if n else None} for n in range(4)]

    def own(path: Path) -> Suite:
        return suite(Store(tmp_path), ItemsSuite(name="own", path=str(path)), 1)

    lines = save(tmp_path / "own.jsonl", [{k: v for k, v in row.items() if v is not None} for row in rows])
    assert own(save(tmp_path / f"own.{ending}", rows if ending != "json" else json.loads(
        f"[{','.join(lines.read_text().splitlines())}]"
    ))).digest() == own(lines).digest()  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("own.json", b'[{"prompt": "a"}', "begins with [ and is no JSON array"),
        ("own.json", b'[{"prompt": NaN}]', "NaN is no JSON number"),
        ("own.json", b"[1]", "row 1 is no JSON object"),
        ("own.csv", b"prompt,reference\na,1,2\n", "ends at line 2 has more cells"),
        ("own.csv", b'prompt,reference\n"a,1\n', "it is no CSV in UTF-8"),
        ("own.csv", b"prompt,reference\n\xff,1\n", "it is no CSV in UTF-8"),
        ("own.csv", b"prompt,reference\na,1\nb,\n", "row 2: its 'reference' is None"),
        ("own.parquet", b"PAR1 and no more", "it is no Parquet file"),
    ],
)
def test_a_file_that_is_not_in_its_format_is_refused(tmp_path: Path, name: str, content: bytes, words: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError) as refusal:
        suite(Store(tmp_path), ItemsSuite(name="own", path=str(tmp_path / name)), 1)
    assert words in str(refusal.value) and f"The suite own at {tmp_path / name}" in str(refusal.value)


def test_choices_are_placed_by_their_item_alone(tmp_path: Path) -> None:
    rows = published("gpqa")
    asked = {item.id: item for item in read(save(tmp_path / "gpqa.csv", rows), "gpqa").items}
    other = {item.id: item for item in read(save(tmp_path / "other.csv", rows[::-2]), "gpqa").items}
    assert other.items() <= asked.items() and len(other) == COUNT // 2
    for item, row in zip(asked.values(), rows, strict=True):
        question, _, *choices = item.messages[0]["content"].split("\n")
        assert question == row["Question"] and f"{item.reference}) {row['Correct Answer'].strip()}" in choices
        texts = [choice.partition(") ")[2] for choice in choices]
        assert sorted(texts) == sorted(row[name].strip() for name in ("Correct Answer", *WRONG))
    assert min(Counter(item.reference for item in asked.values())[letter] for letter in "ABCD") >= 4


def test_two_choices_that_are_equal_are_both_right(tmp_path: Path) -> None:
    rows = published("gpqa")
    rows[0][WRONG[1]] = rows[0]["Correct Answer"]
    item = read(save(tmp_path / "gpqa.csv", rows), "gpqa").items[0]
    letters = json.loads(item.reference)
    outcomes = grade([VerifierTask(f"So.\nAnswer: {letter}", item.reference, item.check) for letter in "ABCD"])
    assert [letter for letter, each in zip("ABCD", outcomes, strict=True) if each.outcome == "correct"] == letters
    rows[1][WRONG[0]] = " "
    with pytest.raises(ValueError, match="row 2: a question has 'Question', 'Correct Answer', 'Incorrect Answer 1'"):
        read(save(tmp_path / "gpqa.csv", rows), "gpqa")


def test_aime_is_drawn_sixteen_times_at_its_own_limits() -> None:
    aime = preset_suite("aime", path="aime.parquet")
    section = Evaluation(suites=(preset_suite("arithmetic"), aime))
    plan = sampling(section, aime)
    assert (plan.samples, plan.temperature, plan.max_completion_tokens) == (16, 0.6, 32_768)
    assert (aime.role, aime.pass_at) == ("report", (1, 8, 16))
    gating = [preset_suite("aime", name=role, path="aime.parquet", role=role) for role in ("target", "guard")]
    assert {each.temperature for each in Evaluation(suites=tuple(gating)).targets} == {0.6}


@pytest.mark.parametrize(("preset", "answer", "reference"), [
    ("aime", "So \\boxed{33}.", "033"), ("math500", "\\boxed{\\text{Evelyn}}", "\\text{Evelyn}"),
    ("gsm8k", "12+6=18\n#### 18", "18"), ("gpqa", "Because.\nAnswer: C", "C"),
])  # fmt: skip
def test_an_answer_as_the_instruction_wants_it_is_read(preset: str, answer: str, reference: str) -> None:
    (graded,) = grade([VerifierTask(answer, reference, preset_suite(preset, path="x").check)], workers=1)
    assert graded.outcome == "correct"
