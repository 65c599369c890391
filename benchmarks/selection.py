"""Where the choice of method flips: `python -m benchmarks.selection [--runs N] [--seed S]`.

Simulated labelled sets go through pairing, measurement and the rule as real ones do; one property of a world changes
at a time. Then the estimators are held against the truth that only a simulation knows: how often the interval of the
label noise covers it, and that of the expected zero-variance share. Where no answer has a reference
(selection_signals.py), a choice is right that is worth as much as the best one, within its standard error. The last
line is JSON.
"""

import argparse
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks import selection_signals as signals
from benchmarks.selection_data import Simulated, World, simulate, true_noise
from pipeline.core.estimate import Estimate, share
from pipeline.recipe import Accelerator, Selection, Training
from pipeline.selection.checks import EvidenceCheck
from pipeline.selection.choose import MethodDecision, choose
from pipeline.selection.cost import expect
from pipeline.selection.evidence import measure, on_frontier
from pipeline.selection.noise import Trust
from pipeline.selection.pairing import by_prompt, pairs

SETTINGS, TRAINING, ACCELERATOR, MIN_COVERAGE = Selection(), Training(), Accelerator(), 0.5
PARAMETERS = 8_000_000_000
GENERATIONS = TRAINING.grpo.num_generations

CHECKED, RATED, RARE = World(), World(verifiable=0.3), World(verifiable=0.12, noise=0.05)
"""Most prompts have a reference, as GRPO needs; few have, so DPO is left; so few that its pairs are mostly users'."""


class Sweep(NamedTuple):
    title: str
    world: World
    field: str
    values: Sequence[float]


SWEEPS = (
    Sweep("noise of users' feedback", RATED, "noise", (0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4)),
    Sweep("prompts", RATED, "prompts", (300, 600, 1000, 1500, 2000, 3000, 6000)),
    Sweep("distance of good from bad rewards", RARE, "separation", (0.1, 0.3, 0.38, 0.42, 0.6, 1.0)),
    Sweep("completions drawn afresh", RATED, "diversity", (0.05, 0.1, 0.2, 0.4, 0.8, 1.0)),
    Sweep("share of verifiable prompts", CHECKED, "verifiable", (0.0, 0.1, 0.3, 0.45, 0.5, 0.55, 0.6, 0.8, 1.0)),
    Sweep("noise of users' feedback", CHECKED, "noise", (0.0, 0.2, 0.4)),
    Sweep("prompts", CHECKED, "prompts", (30, 100, 150, 200, 300, 1000, 3000)),
    Sweep("completions drawn afresh", CHECKED, "diversity", (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)),
    Sweep("mean chance of a right answer", CHECKED, "solved", (0.001, 0.01, 0.05, 0.5, 0.95, 0.99, 0.999)),
)


class Run(NamedTuple):
    decision: MethodDecision
    true_noise: float
    true_zero_variance: float


def run(world: World, seed: int, settings: Selection = SETTINGS, reviews: int = 0) -> Run:
    """One simulated labelled set through pairing, measurement and the rule; people may have reviewed some labels."""
    return judge(simulate(world, seed), settings, seed, reviews)


def judge(simulated: Simulated, settings: Selection, seed: int, reviews: int) -> Run:
    groups = by_prompt(simulated.rows)
    made = pairs(groups, settings)
    evidence = measure(simulated.rows, made, Trust(human=_reviewed(simulated, reviews, seed)), settings)
    expected = expect(evidence, TRAINING, ACCELERATOR, PARAMETERS)
    flat: list[float] = []
    for prompt, group in groups.items():
        verified = [row.correct for row in group if row.correct is not None]
        open_ended = on_frontier(sum(map(bool, verified)), len(verified), settings.curriculum_attempts)
        if open_ended and any(row.reference for row in group):
            p = simulated.chance[prompt]
            flat.append(p**GENERATIONS + (1 - p) ** GENERATIONS)
    decision = choose(evidence, settings, MIN_COVERAGE, expected)
    return Run(decision, true_noise(made, simulated.good), fmean(flat) if flat else 0.0)


def _reviewed(simulated: Simulated, reviews: int, seed: int) -> Estimate:
    labels = [(row.final_reward > 0.5, row.trace_id) for row in simulated.rows if row.final_reward is not None]
    drawn = random.Random(seed).sample(labels, min(reviews, len(labels)))
    return share(sum(label != simulated.good[trace] for label, trace in drawn), len(drawn))


def sweep(each: Sweep, runs: int, seed: int) -> tuple[list[str], dict[str, dict[str, int]]]:
    """The lines of a table, and how often each method was taken, by value."""
    lines = [
        f"| {each.title} | method | verifiable | frontier | zero variance | pairs | label noise | true noise |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    taken: dict[str, dict[str, int]] = {}
    for value in each.values:
        world = each.world._replace(**{each.field: value})
        done = [run(world, seed + number) for number in range(runs)]
        counts = Counter(one.decision.method for one in done)
        taken[f"{value:g}"] = dict(counts)
        methods = ", ".join(f"{name} {count}/{runs}" for name, count in counts.most_common())
        if len(counts) == 1:
            methods = next(iter(counts))
        first = done[0].decision
        found = {check.key: _short(check) for check in first.checks}
        lines.append(
            f"| {value:g} | {methods} | {found['verifiable']} | {found['frontier']} | {found['zero_variance']} | "
            f"{found['pairs']} | {found['noise']} | {100 * done[0].true_noise:.1f}% |"
        )
    return lines, taken


def _short(check: EvidenceCheck) -> str:
    return re.sub(r", n=[\d,]+| \(n=[\d,]+\)", "", check.interval())


def coverage(runs: int, seed: int, sizes: Sequence[int] = (300, 1500)) -> dict[str, Any]:
    """The estimates against the truth, over worlds that differ in noise, size and difficulty."""
    worlds = [
        World(verifiable=0.4, prompts=prompts, noise=noise, spread=spread, solved=solved)
        for prompts in sizes
        for noise in (0.0, 0.1, 0.2, 0.4)
        for spread in (0.3, 1.0, 4.0)
        for solved in (0.5, 0.9)
    ]
    found: dict[str, list[tuple[Estimate, float]]] = {"noise": [], "noise_by_people": [], "zero_variance": []}
    for number in range(runs):
        for place, world in enumerate(worlds):
            simulated = simulate(world, seed + 1000 * number + place)
            audited, reviewed = (judge(simulated, SETTINGS, seed + number, reviews) for reviews in (0, 200))
            found["noise"].append((audited.decision.evidence.label_noise, audited.true_noise))
            found["noise_by_people"].append((reviewed.decision.evidence.label_noise, reviewed.true_noise))
            flat = audited.decision.expected["grpo"].zero_variance_share
            found["zero_variance"].append((flat, audited.true_zero_variance))
    return {name: _against_truth(estimates) for name, estimates in found.items()}


def without_references(runs: int, seed: int) -> dict[str, Any]:
    """Tables of the regions where no answer can be checked; the share of right choices in each, and over all."""
    shares: dict[str, float] = {}
    everything: list[bool] = []
    for each in signals.SWEEPS:
        print(f"### No references: {each.title}", "| value | chosen | utility: sft | kto | none | right |", sep="\n\n")
        print("| --- | --- | --- | --- | --- | --- |")
        here: list[bool] = []
        for value in each.values:
            world = each.world._replace(**{each.field: value})
            done = [signals.outcome(world, seed + number) for number in range(runs)]
            right = signals.right(done)
            here += right
            chosen = ", ".join(f"{name} {n}/{runs}" for name, n in Counter(one.chosen for one in done).most_common())
            worth = [_mean_worth(done, name) for name in signals.CHOICES]
            print(f"| {value} | {chosen} | {' | '.join(worth)} | {fmean(right):.0%} |", flush=True)
        print()
        shares[each.title] = round(fmean(here), 3)
        everything += here
    return {"right_share": round(fmean(everything), 3), "choices": len(everything), "by_region": shares}


def _mean_worth(done: Sequence[signals.Outcome], name: signals.Choice) -> str:
    values = [one.utilities[name] for one in done if name in one.utilities]
    return f"{fmean(values):.3f}" if values else "-"


def _against_truth(found: Sequence[tuple[Estimate, float]]) -> dict[str, float]:
    """Share of the intervals that hold the truth, share that lie below it, mean error of the values."""
    known = [
        (each.value, each.low, each.high, truth)
        for each, truth in found
        if each.value is not None and each.low is not None and each.high is not None
    ]
    return {
        "sets": len(found),
        "unknown": len(found) - len(known),
        "covers": round(fmean(low <= truth <= high for _, low, high, truth in known), 3),
        "too_low": round(fmean(truth > high for _, _, high, truth in known), 3),
        "bias": round(fmean(value - truth for value, _, _, truth in known), 4),
        "mean_width": round(fmean(high - low for _, low, high, _ in known), 3),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--runs", type=int, default=5, help="simulated sets of each kind")
    options.add_argument("--seed", type=int, default=1)
    chosen = options.parse_args()
    flips: dict[str, Any] = {}
    for each in SWEEPS:
        world = f"{each.world.verifiable:.0%} of the prompts verifiable"
        world = "all else as usual" if each.field == "verifiable" else world
        lines, flips[f"{each.field}, {world}"] = sweep(each, chosen.runs, chosen.seed)
        print(f"### {each.title[0].upper()}{each.title[1:]}, {world}", *lines, "", sep="\n", flush=True)
    unchecked = without_references(chosen.runs, chosen.seed)
    truth = coverage(chosen.runs, chosen.seed)
    print(json.dumps({"taken": flips, "against_truth": truth, "without_references": unchecked}))


if __name__ == "__main__":
    main()
