"""The whole loop on the desk, as the command that people type, and its samples under kills: an answer that the journal
holds twice was paid for twice."""

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.signals_world import RECIPE, Cells, base, worth, worth_of_turns
from evals.gate import GateVerdict
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store
from pipeline.demo.desk.conversation import KINDS
from pipeline.training.result import TrainingResult

if TYPE_CHECKING:
    from benchmarks.signals import Size

ROOT = Path(__file__).parent.parent
LEAST_ANSWERS, MOST_ANSWERS = 20, 160
"""A process is killed once it has written so many answers, so that a slow machine sees as many kills as a fast one."""
POLL_S = 0.02


def whole_loop(size: "Size", kept: Cells) -> dict[str, float]:
    """`dagster job launch -j preference_tuning` with the desk's recipe, once; the seed is the recipe's."""
    return kept.once("loop", lambda: _loop(size))


def _loop(size: "Size") -> dict[str, float]:
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


def kills(size: "Size", kept: Cells) -> dict[str, float]:
    done = [kept.once(f"seed {seed} kills", lambda: _killed(seed, size)) for seed in size.seeds]  # noqa: B023
    return {f"samples_{name}": sum(each[name] for each in done) for name in ("asked_twice", "kills", "answered")}


def _killed(seed: int, size: "Size") -> dict[str, int]:
    dice, killed = random.Random(f"kills/{seed}"), 0
    prompts = 16 if size.small else 96
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.signals_draw", folder, str(seed), str(prompts)]
        while (code := _run(command, Path(folder), dice.randint(LEAST_ANSWERS, MOST_ANSWERS))) == -signal.SIGKILL:
            killed += 1
        if code:
            raise RuntimeError(f"the draw ended with exit code {code}")
        keys: Counter[str] = Counter()
        for content in _journals(Path(folder)):
            keys.update(json.loads(line)["answer"]["key"] for line in content.splitlines())
    return {"asked_twice": keys.total() - len(keys), "kills": killed, "answered": len(keys)}


def _run(command: list[str], folder: Path, answers: int) -> int:
    """Exit code of a process that is killed, with its children, once the journal has so many answers more."""
    before = _lines(folder)
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True) as process:
        while (code := process.poll()) is None:
            if _lines(folder) - before >= answers:
                os.killpg(process.pid, signal.SIGKILL)
                return process.wait()
            time.sleep(POLL_S)
        return code


def _lines(folder: Path) -> int:
    return sum(content.count("\n") for content in _journals(folder))


def _journals(folder: Path) -> list[str]:
    return [path.read_text() for path in folder.rglob("*.jsonl")]
