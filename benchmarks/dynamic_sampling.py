"""Whether replacing groups without a gradient pays: `python -m benchmarks.dynamic_sampling [--small]`.

The embedded recipe's GRPO with and without dynamic sampling, same plans, several seeds: held-out accuracy by step and
by generated tokens. The last line is JSON: for each arm the median steps and generated tokens to `target`, the accuracy
that plain GRPO ends with, and `token_ratio` and `step_ratio` of dynamic to plain sampling (below 1: it pays).
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from benchmarks.kills import Zygote, result_of
from benchmarks.training import write_plan
from pipeline.recipe import DynamicSampling, Training, Validation, load

ARMS: dict[str, DynamicSampling | None] = {"plain": None, "dynamic": DynamicSampling(max_batches=3)}


class Point(NamedTuple):
    """Held-out accuracy after so many steps and generated tokens."""

    step: float
    tokens: float
    accuracy: float


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--small", action="store_true", help="one seed, a few steps")
    small = options.parse_args().small
    training = load("jobs/recipes/embedded.yaml").training
    training = training.model_copy(
        update={"validation": Validation(every_steps=4, prompts=128, samples=2, max_completion_tokens=32)}
    )
    if small:
        training = training.model_copy(update={"grpo": training.grpo.model_copy(update={"steps": 8})})
    found: dict[str, list[list[Point]]] = {arm: [] for arm in ARMS}
    with tempfile.TemporaryDirectory() as folder, Zygote(Path(folder, "output.log")) as zygote:
        for seed in range(1 if small else 5):
            for arm, dynamic in ARMS.items():
                settings = _with(training, dynamic, seed)
                plan = write_plan(Path(folder, f"{arm}-{seed}"), settings, seed=seed)
                assert zygote.attempt(plan).code == 0, zygote.output.read_text()
                curve = points(result_of(plan).metrics)
                found[arm].append(curve)
                print(
                    f"{arm:<8} seed {seed}  " + "  ".join(f"{p.step:.0f}: {p.accuracy:.3f}" for p in curve), flush=True
                )
    target = statistics.median(curve[-1].accuracy for curve in found["plain"])
    reached = {arm: [reach(curve, target) for curve in curves] for arm, curves in found.items()}
    steps = {arm: statistics.median(p.step for p in each) for arm, each in reached.items()}
    tokens = {arm: statistics.median(p.tokens for p in each) for arm, each in reached.items()}
    print(
        json.dumps(
            {
                "target": round(target, 4),
                "steps": steps,
                "generated_tokens": {arm: round(count) for arm, count in tokens.items()},
                "reached": {arm: sum(point.accuracy >= target for point in each) for arm, each in reached.items()},
                "step_ratio": round(steps["dynamic"] / steps["plain"], 3),
                "token_ratio": round(tokens["dynamic"] / tokens["plain"], 3),
                "final": {arm: [round(curve[-1].accuracy, 3) for curve in curves] for arm, curves in found.items()},
            }
        )
    )


def _with(training: Training, dynamic: DynamicSampling | None, seed: int) -> Training:
    grpo = training.grpo.model_copy(update={"dynamic_sampling": dynamic})
    return training.model_copy(update={"grpo": grpo, "seed": seed})


def points(metrics: Sequence[Mapping[str, float]]) -> list[Point]:
    """The validated steps, with the tokens that were generated up to them."""
    tokens, found = 0.0, list[Point]()
    for row in metrics:
        tokens += row.get("generate_tokens_per_s", 0.0) * row.get("seconds/generate", 0.0)
        if "held_out/accuracy" in row:
            found.append(Point(row["step"], tokens, row["held_out/accuracy"]))
    return found


def reach(curve: Sequence[Point], target: float) -> Point:
    """Where the curve crosses `target`, between two points; its end where it does not."""
    for before, after in pairwise(curve):
        if before.accuracy < target <= after.accuracy:
            share = (target - before.accuracy) / (after.accuracy - before.accuracy)
            step, tokens = (a + share * (b - a) for a, b in zip(before[:2], after[:2], strict=True))
            return Point(step, tokens, target)
    return curve[-1]


if __name__ == "__main__":
    main()
