"""Whether tests fail when a guard is removed: `python -m benchmarks.mutation [--small] [--module M] [--sample N]`.

A seeded sample of mutants (mutants.py) of each module that decides, each run against the module's own fast tests until
the first one fails. Works in a copy of the tree that it removes at the end. A process that has imported all else forks
one for each mutant (mutation_runner.py), so that a mutant costs its tests alone; it lies in a file, so that processes
which a test starts run it too. Prints each mutant with its place and its change. The last line is JSON: mutants,
killed, survived and timed out, of all and of each module. Needs Linux.

Not a library, because mutmut and Cosmic Ray have no operator that removes a statement or a guard's body, which is the
question here; the one rewrites every function of a file, the other starts the interpreter anew for each mutant.
"""

import argparse
import contextlib
import json
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from benchmarks.mutants import Mutant, applied, mutants
from benchmarks.mutation_runner import PACKAGES, Runner, Trial

ROOT = Path(__file__).parent.parent
TREE = (*PACKAGES, "docs", "pyproject.toml")


def _named(folder: str, *names: str) -> tuple[str, ...]:
    return tuple(f"tests/{folder}/test_{name}.py" for name in names)


TESTS: dict[str, tuple[str, ...]] = {
    "evals/gate.py": _named("evals", "gate", "roles", "judged_gate"),
    "evals/statistics.py": _named("evals", "statistics", "comparison"),
    "pipeline/selection/choose.py": _named("pipeline/selection", "choose", "thumbs", "winners"),
    "pipeline/selection/scorers.py": _named("pipeline/selection", "scorers"),
    "pipeline/rewards/composite.py": _named("pipeline/rewards", "composite"),
    "pipeline/rollout/policy.py": _named("pipeline/rollout", "propose", "plan"),
    "pipeline/rollout/fold.py": _named("pipeline/rollout", "guards", "watched"),
    "pipeline/rollout/decision.py": _named("pipeline/rollout", "decision", "phases"),
    "pipeline/rollout/propose.py": _named("pipeline/rollout", "propose", "phases", "decision"),
    "pipeline/rollout/blocks.py": _named("pipeline/rollout", "propose"),
    "pipeline/rollout/comparability.py": _named("pipeline/rollout", "comparability"),
    "pipeline/rollout/fingerprint.py": _named("pipeline/rollout", "fingerprint"),
    "pipeline/rollout/advance.py": _named("pipeline/rollout", "advance", "plan"),
    "pipeline/rollout/controller.py": _named(
        "pipeline/rollout", "controller", "phases", "guards", "watched", "servers"
    ),
    "pipeline/rollout/reconcile.py": _named("pipeline/rollout", "guards", "phases", "servers", "watched", "decision"),
    "pipeline/rollout/record.py": _named("pipeline/rollout", "guards", "phases"),
    "pipeline/training/checkpoints/checkpointer.py": _named(
        "pipeline/training/checkpoints", "checkpointer", "retention", "mirror", "mirror_uploads", "claims"
    ),
    "pipeline/training/checkpoints/claims.py": _named("pipeline/training/checkpoints", "claims"),
    "pipeline/training/checkpoints/manifest.py": _named(
        "pipeline/training/checkpoints", "manifest", "checkpointer", "retention", "mirror"
    ),
    "pipeline/training/checkpoints/mirror.py": _named(
        "pipeline/training/checkpoints", "mirror", "mirror_uploads", "mirror_removal"
    ),
    "pipeline/training/checkpoints/save_schedule.py": _named("pipeline/training/checkpoints", "manifest"),
    "pipeline/traces/gates.py": _named("pipeline/traces", "gates"),
    "pipeline/training/sentinel.py": _named("pipeline/training", "sentinel"),
}
"""Each module that decides, with the files of its tests, its own first."""
PATIENCE, AT_LEAST_S = 4.0, 20.0
"""A mutant may take so many times as long as the tests of the module as it is, and no less than this."""


class Judged(NamedTuple):
    module: str
    mutant: Mutant
    trial: Trial


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--module", action="append", choices=sorted(TESTS), metavar="M", help="one of them alone")
    options.add_argument("--sample", type=int, default=25, help="mutants of each module; 0: all of them")
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--operator", default="", help="only mutants whose operator has this name, such as never")
    options.add_argument("--small", action="store_true", help="two mutants of one module")
    chosen = options.parse_args()
    if chosen.small:
        chosen.module, chosen.sample = ["pipeline/training/checkpoints/save_schedule.py"], 2
    figures: dict[str, dict[str, int]] = {}
    with copied(ROOT) as tree:
        for module in chosen.module or TESTS:
            drawn = sample((tree / module).read_text(), chosen.sample, f"{chosen.seed} {module}", chosen.operator)
            counts = Counter[str]()
            for judged in trials(tree, module, TESTS[module], drawn):
                counts[judged.trial.status] += 1
                print(describe(judged), flush=True)
            figures[module] = summary(counts)
            print(f"{module}: {figures[module]}", flush=True)
    total = {key: sum(each[key] for each in figures.values()) for key in summary(Counter())}
    print(json.dumps({**total, "seed": chosen.seed, "sample": chosen.sample, "modules": figures}))


def sample(source: str, size: int, seed: str, operator: str = "") -> list[Mutant]:
    """`size` of a module's mutants in the order of its lines, the same for the same seed; all where it has no more."""
    every = [mutant for mutant in mutants(source) if operator in ("", mutant.operator)]
    if not size or size >= len(every):
        return every
    return [every[at] for at in sorted(random.Random(seed).sample(range(len(every)), size))]


def summary(counts: Counter[str]) -> dict[str, int]:
    """A mutant that never ends is killed too, and counted by itself as well."""
    killed = counts["failed"] + counts["timed out"]
    return {
        "mutants": counts.total(),
        "killed": killed,
        "survived": counts["passed"],
        "timed_out": counts["timed out"],
    }


def describe(judged: Judged) -> str:
    word = {"passed": "SURVIVED", "failed": "killed", "timed out": "timed out"}[judged.trial.status]
    by = f"  by {judged.trial.by.rpartition('/')[2]}" if judged.trial.by else ""
    return f"{word:<9} {judged.module}:{judged.mutant.line}  {judged.mutant}{by}  ({judged.trial.took_s:.1f} s)"


@contextlib.contextmanager
def copied(root: Path) -> Iterator[Path]:
    """A copy of the tree, with the reference data beside it."""
    with tempfile.TemporaryDirectory(prefix="mutation-", ignore_cleanup_errors=True) as folder:
        tree = Path(folder) / "tree"
        tree.mkdir()
        for name in TREE:
            source = root / name
            if source.is_dir():
                shutil.copytree(source, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
            elif source.is_file():
                shutil.copy2(source, tree / name)
        if (shared := root.parent / "shared").is_dir():
            (tree.parent / "shared").symlink_to(shared.resolve())
        yield tree


def trials(tree: Path, module: str, tests: Sequence[str], drawn: Sequence[Mutant]) -> Iterator[Judged]:
    """Each mutant with the word of the module's tests. Raises RuntimeError where these fail without any mutant."""
    file = tree / module
    source = file.read_text()
    with Runner(tree, module, tests) as runner:
        undisturbed = runner.run()
        if undisturbed.status != "passed":
            raise RuntimeError(f"The tests of {module} {undisturbed.status} as it is, by {undisturbed.by}. Mend them.")
        for bytecode in file.parent.glob(f"__pycache__/{file.stem}.*.pyc"):
            bytecode.unlink()
        try:
            for mutant in drawn:
                file.write_text(applied(source, mutant))
                within_s = max(AT_LEAST_S, PATIENCE * undisturbed.took_s)
                lines = range(mutant.line, mutant.line + mutant.before.count("\n") + 1)
                yield Judged(module, mutant, runner.run(within_s, lines))
        finally:
            file.write_text(source)


if __name__ == "__main__":
    main()
