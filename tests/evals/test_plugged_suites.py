"""Suites of an installed package: read as a file's lines are, and refused with the name of who made them."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from evals.suites import suite
from pipeline.recipe import load
from pipeline.recipe.suites import PluginSuite
from pipeline.storage import Store
from tests.pipeline.plugin_packages import Install, install

__all__ = ["install"]
EMBEDDED = Path(__file__).parents[2] / "jobs" / "recipes" / "embedded.yaml"
SUITE = """
def make(seed, desk="all"):
    for n in range(40):
        yield {"prompt": f"{desk}: {n} + {seed}?", "reference": n + seed, "slice": desk}
"""


def section(**changes: object) -> PluginSuite:
    return PluginSuite.model_validate({"name": "tickets", **changes})


def test_a_plug_ins_items_are_those_of_a_file(install: Install, tmp_path: Path) -> None:
    install("suites", "tickets", SUITE)
    read = suite(Store(tmp_path), section(options={"desk": "returns"}), seed=5)
    assert len(read.items) == 40
    assert (read.items[3].messages, read.items[3].reference) == ([{"role": "user", "content": "returns: 3 + 5?"}], "8")
    assert read.items[3].slice == "returns" and read.items[3].check == "math"
    assert suite(Store(tmp_path), section(options={"desk": "returns"}), seed=5).digest() == read.digest()
    assert len(suite(Store(tmp_path), section(items=10), seed=5).items) == 10


def test_an_entry_point_may_have_another_name(install: Install, tmp_path: Path) -> None:
    install("suites", "acme-tickets", SUITE)
    assert len(suite(Store(tmp_path), section(plugin="acme-tickets"), seed=1).items) == 40
    with pytest.raises(ValueError, match=r"evaluation\.suites, tickets: no installed package .*there: acme-tickets"):
        suite(Store(tmp_path), section(), seed=1)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("def make(", "make = 3\ndef other(", r"acme 1\.0: .* is int, which cannot be called"),
        ("desk=", "desks=", r"does not take these options: .*'desk'"),
        ("def make(", "def make(seed, desk):\n    return 3\n\ndef other(", r"it returned int, which holds no items"),
        ('yield {"prompt"', 'yield 1 / 0, {"prompt"', r"failed when it made its items \(ZeroDivisionError in acme_"),
        ('yield {"prompt"', 'yield 3, {"prompt"', r"an item is tuple, no mapping"),
        ("n + seed,", "float('nan'),", r"an item is no JSON \(Out of range"),
        ("n + seed,", "make,", r"an item is no JSON \(Object of type function"),
        ("n + seed,", "None,", r"tickets of acme==1\.0: line 1: its 'reference' is None"),
        ('"prompt": f"{desk}: {n} + {seed}?"', '"prompt": "a"', r"tickets of acme==1\.0: lines 1 and 2 have the id"),
        ('"slice"', '"slices"', r"nothing reads its field 'slices'"),
    ],
)
def test_items_that_are_none_are_refused(install: Install, tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in SUITE
    install("suites", "tickets", SUITE.replace(old, new, 1))
    with pytest.raises(ValueError, match=message):
        suite(Store(tmp_path), section(options={"desk": "a"}), seed=1)


def test_another_version_is_another_recipe(install: Install, tmp_path: Path) -> None:
    tree = yaml.safe_load(EMBEDDED.read_text())
    tree["evaluation"]["suites"] = [{"kind": "plugin", "name": "tickets"}]
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump(tree))
    install("suites", "tickets", SUITE)
    first = load(path)
    install("suites", "tickets", SUITE, version="1.1")
    newer = load(path)
    assert [each.digest for each in newer.evaluation.suites if isinstance(each, PluginSuite)] == ["acme==1.1"]
    assert first.digest() != newer.digest()
    tree["evaluation"]["suites"][0]["digest"] = "acme==1.0"
    path.write_text(yaml.safe_dump(tree))
    with pytest.raises(ValueError, match=r"suites, tickets: acme==1\.0 was agreed on, and acme==1\.1 is installed"):
        load(path)
