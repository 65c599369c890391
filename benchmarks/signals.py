"""What signals without references are worth on the embedded desk: `python -m benchmarks.signals [--small] [PART ...]`.
Utility is hidden from the pipeline and measured here. With `--cells FILE` a cell of the file is not measured again. The
last line is JSON with all figures."""

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from benchmarks import signals_methods as methods
from benchmarks.signals_world import RECIPE, Cells, base, worth, worth_of_turns
from evals.gate import GateVerdict
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.demo.desk.conversation import KINDS
from pipeline.training.result import TrainingResult


class Size(NamedTuple):
    """How much is measured: seeds, held-out requests for each utility, and whether cells are few and small."""

    seeds: tuple[int, ...]
    items: int
    small: bool


ROOT = Path(__file__).parent.parent


def whole_loop(size: Size, kept: Cells) -> dict[str, float]:
    """`dagster job launch -j preference_tuning` with the desk's recipe, once; the seed is the recipe's."""
    return kept.once("loop", lambda: _loop(size))


def _loop(size: Size) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        settings = [f"data_root={folder}/data"] + (SMALL_LOOP if size.small else [])
        environment = {
            **os.environ, "PREFERENCE_TUNING_RECIPE": str(RECIPE), "PREFERENCE_TUNING_OVERRIDES": " ".join(settings)
        }  # fmt: skip
        began = time.monotonic()
        command = ["dagster", "job", "launch", "-j", "preference_tuning"]
        subprocess.run(command, cwd=ROOT, env=environment, check=True, stdout=subprocess.DEVNULL)
        minutes = (time.monotonic() - began) / 60
        store = Store(Path(folder, "data"))
        latest = store.read(layout.LATEST, Iteration)
        assert latest is not None
        verdict = store.read(latest.path(layout.GATE_VERDICT), GateVerdict)
        result = store.read(latest.path(layout.RESULT), TrainingResult)
        assert verdict is not None and result is not None
        before, after = (worth(model, 1, size.items) for model in (base(), result.checkpoint.model))
        print(f"loop: {minutes:.1f} min, verdict {verdict.verdict} ({'; '.join(verdict.reasons)})", flush=True)
        print(
            f"loop: utility {before.mean:.3f} +- {before.error:.3f}, then {after.mean:.3f} +- {after.error:.3f}",
            flush=True,
        )
        for kind in KINDS:
            old, new = (worth_of_turns(model, kind, 1, size.items) for model in (base(), result.checkpoint.model))
            print(f"loop: utility of turns of kind {kind} {old:.3f}, then {new:.3f}", flush=True)
        passed = float(verdict.verdict == "PASS")
        return {"desk_utility_before": before.mean, "desk_utility_after": after.mean, "desk_gate_passed": passed,
                "desk_minutes": minutes}  # fmt: skip


SMALL_LOOP = [
    "traces.source.traces_per_day=400",
    "samples.prompts=48",
    "selection.method=sft",
    "training.sft.steps=16",
    "evaluation.suites.0.items=80",
    "evaluation.guard_margin=0.1",
    "evaluation.max_standard_error=0.1",
]


Part = Callable[[Size, Cells], dict[str, float]]
PARTS: dict[str, Part] = {
    "methods": methods.cells,
    "controls": methods.controls,
    "loop": whole_loop,
}


SMALL = ("methods",)
"""What a small run measures where no part is named."""


def main(arguments: list[str] | None = None) -> dict[str, float]:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options.add_argument("--small", action="store_true", help="one seed, one small cell, few held-out requests")
    options.add_argument("--seeds", type=int, default=3, help="from 1 on (default: %(default)s)")
    options.add_argument("--cells", type=Path, metavar="FILE", help="JSON lines of the cells that were measured")
    chosen = options.parse_args(arguments)
    if unknown := set(chosen.parts) - set(PARTS):
        options.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    size = Size((1,), 40, True) if chosen.small else Size(tuple(range(1, chosen.seeds + 1)), 300, False)
    cells = Cells(chosen.cells, "small" if chosen.small else "whole")
    figures: dict[str, float] = {"seeds": len(size.seeds)}
    for name in chosen.parts or (SMALL if chosen.small else PARTS):
        started = time.monotonic()
        figures |= PARTS[name](size, cells)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))
    return figures


if __name__ == "__main__":
    main()
