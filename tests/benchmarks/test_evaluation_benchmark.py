"""The simulated gates at a size that takes seconds: that they are the gate's, and tell right from wrong."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.evaluation_gates import drawn, improves, judged, keeps
from evals.gate import Verdict
from evals.suites import Item, Suite
from pipeline.recipe import Evaluation

pytestmark = pytest.mark.slow


def test_simulated_models_are_as_they_were_asked_for() -> None:
    counts = drawn(np.random.default_rng(1), 50, 400, 4, (0.5, 0.6), size=2)
    assert counts.champion.mean() / 4 == pytest.approx(0.5, abs=0.01)
    assert counts.candidate.mean() / 4 == pytest.approx(0.6, abs=0.01)
    sums, sizes = counts.sums()
    assert sums.shape == (50, 200) and set(sizes) == {8.0}
    assert sums[3, 7] == (counts.candidate - counts.champion)[3, 14:16].sum()


def test_decisions_over_arrays_are_those_of_the_gate() -> None:
    suites = [
        {"kind": "items", "preset": "arithmetic", "name": name, "role": role}
        for name, role in (("t", "target"), ("g", "guard"))
    ]
    section = Evaluation.model_validate(
        {
            "suites": suites,
            "samples_per_item": 2,
            "max_standard_error": 0.2,
            "improvement_alpha": 0.05,
            "guard_margin": 0.05,
        }
    )
    asked = {
        name: Suite(
            name=name,
            items=tuple(
                Item(id=f"{n:03d}", cluster=f"{n // 2:03d}", messages=[{"role": "user", "content": f"{name} {n}"}],
                     reference=str(n), slice="")
                for n in range(140)
            ),
        )
        for name in "tg"
    }  # fmt: skip
    rng = np.random.default_rng(2)
    counts = {"t": drawn(rng, 16, 140, 2, (0.4, 0.5), 2), "g": drawn(rng, 16, 140, 2, (0.4, 0.47), 2)}
    shown = improves(counts["t"], section.alpha, section.seed)
    held = keeps(counts["g"], 0.03, section.alpha, section.seed)
    assert {(True, True), (False, True), (True, False)} <= set(zip(shown.tolist(), held.tolist(), strict=True))
    for row in range(16):
        assert (judged(section, asked, counts, row) is Verdict.PASS) == (shown[row] and held[row])
