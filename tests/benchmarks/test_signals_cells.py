"""An interrupted benchmark measures what is missing, and only that."""

from pathlib import Path

import pytest

from benchmarks.signals_methods import chosen_is_best
from benchmarks.signals_world import Cells


def test_a_cell_is_measured_once(tmp_path: Path) -> None:
    path = tmp_path / "cells.jsonl"
    measured: list[str] = []

    def measure(name: str) -> dict[str, float]:
        measured.append(name)
        return {"utility": float(len(measured))}

    first = Cells(path, "whole")
    assert first.missing(["a", "b"]) == ["a", "b"]
    assert first.once("a", lambda: measure("a")) == first.once("a", lambda: measure("a")) == {"utility": 1.0}
    again = Cells(path, "whole")
    assert again.missing(["a", "b"]) == ["b"] and again.once("a", dict) == {"utility": 1.0}
    assert Cells(path, "small").missing(["a"]) == ["a"], "figures of another size do not count"
    again.once("b", lambda: measure("b"))
    assert measured == ["a", "b"] and len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("chosen", "sft", "kto", "right"),
    [
        ("sft", 0.80, 0.70, True),
        ("kto", 0.80, 0.70, False),
        ("kto", 0.80, 0.79, True),
        ("none", 0.80, 0.70, False),
        ("none", 0.30, 0.20, True),
        ("none", 0.30, 0.45, False),
    ],
)
def test_a_choice_is_right_within_one_standard_error(chosen: str, sft: float, kto: float, right: bool) -> None:
    before = {"utility": 0.46, "error": 0.02}
    after = {"sft": {"utility": sft, "error": 0.02}, "kto": {"utility": kto, "error": 0.02}}
    assert chosen_is_best(chosen, before, after) == right
