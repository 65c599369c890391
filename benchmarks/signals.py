"""What signals without references are worth on the embedded desk: `python -m benchmarks.signals [--small] [PART ...]`.
Utility is hidden from the pipeline and measured here. The last line is JSON with all figures."""

import os
import subprocess
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import NamedTuple

from benchmarks.parts import chosen, measure, options
from benchmarks.signals_methods import cells
from benchmarks.signals_world import RECIPE, base, worth
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


def whole_loop(size: Size) -> dict[str, float]:
    """`dagster job launch -j preference_tuning` with the desk's recipe, once; the seed is the recipe's."""
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
        models = base(), result.checkpoint.model
        before, after = (worth(model, 1, size.items) for model in models)
        print(f"loop: {minutes:.1f} min, verdict {verdict.verdict} ({'; '.join(verdict.reasons)})", flush=True)
        print(
            f"loop: utility {before.mean:.3f} +- {before.error:.3f}, then {after.mean:.3f} +- {after.error:.3f}",
            flush=True,
        )
        for kind in KINDS:
            old, new = (worth(model, 1, size.items, kind) for model in models)
            print(f"loop: utility of turns of kind {kind} {old.mean:.3f}, then {new.mean:.3f}", flush=True)
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


PARTS = {"methods": cells, "loop": whole_loop}


def main() -> None:
    parser = options(__doc__, "one seed, one small cell, few held-out requests; of no named parts `methods` alone")
    parser.add_argument("--seeds", type=int, default=3, help="from 1 on (default: %(default)s)")
    asked = chosen(parser, list(PARTS))
    if asked.small and len(asked.parts) == len(PARTS):
        asked.parts = ["methods"]
    size = Size((1,), 40, True) if asked.small else Size(tuple(range(1, asked.seeds + 1)), 300, False)
    measure({name: partial(PARTS[name], size) for name in asked.parts})


if __name__ == "__main__":
    main()
