"""Suites as the evaluation reads them; the file is the demo's own, written as a run writes it."""

from pathlib import Path

import pytest

from evals.suites import suites
from pipeline.core.storage import Store
from pipeline.demo.suite import ensure_suite
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import preset_suite
from tests.suites import embedded_suite

ROOT = Path(__file__).parents[2]
SUITE = preset_suite("arithmetic", items=50)
SECTION = Evaluation(suites=(SUITE,), seed=3)
LINE = (
    '{"id": "a", "cluster": "c", "messages": [{"role": "user", "content": "2 + 2?"}], "reference": "4", "slice": "s"}'
)


def test_a_suite_is_the_file_that_the_recipe_names(tmp_path: Path) -> None:
    store = Store(tmp_path)
    path = ensure_suite(store, SUITE, SECTION.seed)
    (read,) = suites(store, SECTION)
    assert read == embedded_suite(SECTION)
    assert (read.name, len({item.id for item in read.items})) == ("arithmetic", 50)
    path.write_text(path.read_text().replace(read.items[0].reference, "-1", 1))
    assert suites(store, SECTION)[0].digest() != read.digest()


@pytest.mark.slow
def test_a_suite_that_is_gone_is_refused_with_its_cure(tmp_path: Path) -> None:
    store = Store(tmp_path / "a root")
    path = ensure_suite(store, SUITE, SECTION.seed)
    before = suites(store, SECTION)
    path.unlink()
    with pytest.raises(ValueError, match=r"suite arithmetic is not there: .*seed-3-items-50\.jsonl") as refusal:
        suites(store, SECTION)
    assert "dagster job launch -j preference_tuning -o traces" in str(refusal.value)
    ensure_suite(store, SUITE, SECTION.seed)  # as that stage does
    assert suites(store, SECTION) == before


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (f"{LINE}\n", "it has 1 items, and 50 are asked for"),
        (LINE.replace('"4"', "4"), "Input should be a valid string"),
        ("\xff", "line 1 is no JSON"),
    ],
    ids=["too few", "a number", "not UTF-8"],
)
def test_a_file_that_is_no_suite_is_refused(tmp_path: Path, content: str, words: str) -> None:
    store = Store(tmp_path)
    path = ensure_suite(store, SUITE, SECTION.seed)
    path.write_bytes(content.encode("latin-1"))
    with pytest.raises(ValueError) as refusal:
        suites(store, SECTION)
    assert words in str(refusal.value)
    assert str(path) in str(refusal.value)
