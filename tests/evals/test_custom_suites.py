"""Suites of the user's own code: read as a file's lines are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from evals.suites import file_faults, suite
from evals.suites.suite import Suite
from pipeline.core.storage import Store
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import CustomSuite

SUITE = """
def make(seed, desk="all"):
    for n in range(40):
        yield {"prompt": f"{desk}: {n} + {seed}?", "reference": n + seed, "slice": desk}
"""


def made(folder: Path, source: str = SUITE, **changes: Any) -> Suite:
    (folder / "mine.py").write_text(source)
    section = CustomSuite(name="tickets", code=f"{folder}/mine.py:make", **changes)
    return suite(Store(folder), section, seed=5)


def test_its_items_are_those_of_a_file(tmp_path: Path) -> None:
    read = made(tmp_path, options={"desk": "returns"})
    assert len(read.items) == 40
    assert (read.items[3].messages, read.items[3].reference) == ([{"role": "user", "content": "returns: 3 + 5?"}], "8")
    assert read.items[3].slice == "returns" and read.items[3].check == "math"
    assert made(tmp_path, options={"desk": "returns"}).digest() == read.digest()
    assert len(made(tmp_path, items=10).items) == 10


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def make(", "def make(seed):\n    return 3\n\ndef other(", r"'int' object is not iterable"),
        ("n + seed,", "float('nan'),", r"Out of range float"),
        ("n + seed,", "make,", r"Object of type function is not JSON"),
        ("n + seed,", "None,", r"tickets of .*mine\.py:make: line 1: its 'reference' is None"),
        ('"slice"', '"slices"', r"nothing reads its field 'slices'"),
    ],
)
def test_items_that_are_none_are_refused(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SUITE
    with pytest.raises(ValueError, match=message):
        made(tmp_path, SUITE.replace(old, new, 1))


def test_a_launch_asks_for_its_items_first(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("make = 3")
    section = CustomSuite(name="tickets", code=f"{tmp_path}/mine.py:make")
    (fault,) = file_faults(Store(tmp_path), Evaluation(suites=(section,)))
    assert fault.startswith("suite tickets: ") and "cannot be called" in fault
