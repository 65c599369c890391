"""Suites as the evaluation reads them; the file is the demo's own, written as a run writes it."""

import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from evals.suites import held_out_texts, parse, suite
from pipeline.demo.suite import ensure_suite
from pipeline.demo.task import problems
from pipeline.recipe import Evaluation
from pipeline.selection.contamination import Index
from pipeline.storage import Store
from tests.suites import embedded_suite

ROOT = Path(__file__).parents[2]
SECTION = Evaluation(items=50, seed=3)
LINE = (
    '{"id": "a", "cluster": "c", "messages": [{"role": "user", "content": "2 + 2?"}], "reference": "4", "slice": "s"}'
)


def test_a_suite_is_the_file_that_the_recipe_names(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = ensure_suite(store, SECTION)
    read = suite(store, SECTION)
    assert read == embedded_suite(SECTION)
    assert (read.name, len({item.id for item in read.items})) == (SECTION.suite, 50)
    path.write_text(path.read_text().replace(read.items[0].reference, "-1", 1))
    assert suite(store, SECTION).digest() != read.digest()


def test_a_suite_that_is_gone_is_refused_with_its_cure(tmp_path: Path) -> None:
    store = Store(tmp_path / "a root")
    path = ensure_suite(store, SECTION)
    before = suite(store, SECTION)
    path.unlink()
    with pytest.raises(ValueError, match=r"suite is not there: .*seed-3-items-50\.jsonl") as refusal:
        suite(store, SECTION)
    _, _, command = str(refusal.value).partition("Write it again: ")
    subprocess.run([sys.executable, *shlex.split(command)[1:]], cwd=ROOT, check=True)
    assert suite(store, SECTION) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "has 0 items, and evaluation.items is 50"),
        (f"{LINE}\n", "has 1 items, and evaluation.items is 50"),
        (f"{LINE}\n{LINE[:30]}\n", "line 2 is no item"),
        (LINE.replace('"4"', "4"), "line 1 is no item (reference: Input should be a valid string)"),
        (LINE.replace('"slice"', '"level"'), "line 1 is no item (slice: Field required)"),
        ("\xff", "line 1 is no item"),
    ],
    ids=["empty", "too few", "cut off", "a number", "another field", "not UTF-8"],
)
def test_a_file_that_is_no_suite_is_refused(tmp_path: Path, content: str, words: str) -> None:
    store = Store(tmp_path)
    path = ensure_suite(store, SECTION)
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError) as refusal:
        suite(store, SECTION)
    assert words in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_a_suite_offers_all_its_items_for_decontamination() -> None:
    read = embedded_suite(SECTION)
    texts = held_out_texts(read)
    assert texts == {SECTION.suite: tuple(item.messages[0]["content"] for item in read.items)}
    assert texts["arithmetic"][0] == problems(3, "heldout", 1)[0].prompt


def test_every_text_identifies_its_item() -> None:
    assert Index(held_out_texts(embedded_suite(SECTION))).check([])[1].unidentifying == 0


def test_the_order_of_the_items_does_not_change_the_digest() -> None:
    read = embedded_suite(SECTION)
    assert read.model_copy(update={"items": read.items[::-1]}).digest() == read.digest()
    assert parse("other", "") != parse("arithmetic", "")
