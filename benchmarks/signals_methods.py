"""Each method on the same thumbs and samples: hidden utility before and after, and what the rule chooses. A choice is
right when no method of its cell is better by more than the best one's standard error."""

import math
import tempfile
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

from benchmarks.signals_world import Cell, Score, Traffic, World, answered, base, judged, probe_shares, traffic, worth
from pipeline.core.storage import DatasetRef, ModelRef
from pipeline.recipe.methods import MethodName
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.serving.inference import Answer
from pipeline.training.result import TrainingResult
from pipeline.training.sentinel import BRAKES

if TYPE_CHECKING:
    from benchmarks.signals import Size

CELLS = (Cell(1500, 0.1), Cell(300, 0.1), Cell(1500, 0.3), Cell(300, 0.3))
SMALL = (Cell(300, 0.1),)
PROMPTS = 256
FORCED_NOISE = 0.1
"""The noise at which GRPO and DPO over scores are measured too."""
STEPS: dict[MethodName, tuple[str, ...]] = {
    "sft": (),
    "kto": (),
    "grpo": (
        "training.grpo.steps=32", "training.grpo.prompts_per_step=8", "training.grpo.num_generations=8",
        "training.grpo.max_completion_tokens=48", "training.grpo.learning_rate=1.0e-3",
    ),
    "dpo": (
        "training.dpo.steps=48", "training.dpo.batch_size=16", "training.dpo.learning_rate=5.0e-4",
        "training.dpo.trainer_args={loss_weights: [1.0, 1.0]}", "training.dpo.kl_stop=5.0",
    ),
}  # fmt: skip
"""Beside what the desk's recipe says."""


class Seed:
    """The traffic of a seed, and the champion's fresh samples of its first prompts; drawn when a cell needs them."""

    def __init__(self, seed: int, size: "Size") -> None:
        self.seed, self.size = seed, size

    @cached_property
    def logged(self) -> Traffic:
        return traffic(self.seed, 320 if self.size.small else 1600)

    @cached_property
    def drawn(self) -> list[list[Answer]]:
        asked = self.logged.requests[: 32 if self.size.small else PROMPTS]
        return answered(base(), [request.messages for request in asked], 8, self.seed + 50)

    @contextmanager
    def world(self, cell: Cell, *overrides: str) -> Generator[World]:
        with tempfile.TemporaryDirectory() as folder:
            yield World(Path(folder), self.logged, cell, *forgiving(self.size), *overrides)


class Trainable(NamedTuple):
    """What the methods of a cell are trained on."""

    world: World
    report: RewardModelReport
    judge: Score
    samples: DatasetRef


def cells(size: "Size") -> dict[str, float]:
    """The methods at each number of thumbs and each noise, and what the rule makes of each cell's evidence."""
    utilities: defaultdict[str, list[float]] = defaultdict(list)
    probes: list[float] = []
    right: list[bool] = []
    for number in size.seeds:
        seed = Seed(number, size)
        before = measured(f"seed {number} before", base(), seed)
        utilities["before"].append(before["utility"])
        for cell in SMALL if size.small else CELLS:
            evidence, after = _cell(seed, cell)
            for method, figures in after.items():
                utilities[f"{method}_{cell.label}"].append(figures["utility"])
            probes.append(evidence["probe_min"])
            right.append(chosen_is_best(evidence["chosen"], before, after))
    means = {f"utility_{name}": fmean(values) for name, values in utilities.items()}
    errors = {f"error_{name}": _error(values) for name, values in utilities.items() if len(values) > 1}
    figures = {"seeds": len(size.seeds), "choices": len(right), "probe_min": min(probes)}
    return means | errors | figures | {"chosen_is_best_share": fmean(right)}


def chosen_is_best(chosen: str, before: dict[str, Any], after: dict[str, dict[str, Any]]) -> bool:
    """By utilities with their standard errors. `after`: of each method that was tried."""
    if chosen == "none":
        return all(each["utility"] < before["utility"] - each["error"] for each in after.values())
    best = max(after.values(), key=lambda each: each["utility"])
    return after[chosen]["utility"] >= best["utility"] - best["error"]


def _cell(seed: Seed, cell: Cell) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The evidence of a cell with the rule's choice, and each method's utility."""
    scored: Sequence[MethodName] = ("grpo", "dpo") if cell.noise == FORCED_NOISE and not seed.size.small else ()
    place = f"seed {seed.seed} {cell.label}"
    with seed.world(cell) as world:
        report, judge = world.reward_model(), judged("desk-labels", world.recipe.rewards)
        counting = report if report.counts_beside(world.recipe.rewards.fresh) else None
        given = Trainable(world, report, judge, world.best_of(counting, judge, seed.drawn))
        evidence = shown(f"{place} evidence", _evidence(given))
        tried: list[MethodName] = ["sft", "kto", *scored]
        return evidence, {method: _tried(given, method, f"{place} {method}", seed) for method in tried}


def _evidence(given: Trainable) -> dict[str, Any]:
    world, report, judge, samples = given
    decision = world.choice(report, samples)
    shares, gain = probe_shares(world, report, judge), decision.evidence.scorers.gain
    return {
        "chosen": decision.method, "why": "; ".join(decision.reasons), "auc": report.auc.value,
        "auc_low": report.auc.low, "gain": gain.value, "gain_low": gain.low, "probe_min": min(shares.values()),
        **{f"probe_{name}": share for name, share in shares.items()},
    }  # fmt: skip


def _tried(given: Trainable, method: MethodName, name: str, seed: Seed) -> dict[str, Any]:
    world, report, _, samples = given
    report = report.model_copy(update={"admitted": True, "reasons": ()})  # GRPO is forced, whatever it lacks
    overrides = (f"selection.method={method}", *STEPS[method], *short(method, seed.size))
    return left(name, world.train(method, *overrides, samples=samples, report=report), seed)


def left(name: str, result: TrainingResult, seed: Seed) -> dict[str, Any]:
    """What a training leaves: hidden utility, health, the brakes that spoke, how far it went and how long it took."""
    distances = [row["held_out/answer_kl"] for row in result.metrics if "held_out/answer_kl" in row]
    findings = result.health.findings
    figures = {
        "health": result.health.verdict, "why": result.health.why,
        "brakes": [finding.rule for finding in findings if finding.rule in BRAKES or finding.verdict == "STOP"],
        "step": result.checkpoint.step, "kl": max(distances, default=math.nan), "seconds": result.goodput.total_s,
    }  # fmt: skip
    return measured(name, result.checkpoint.model, seed) | shown(name, figures)


def measured(name: str, model: ModelRef, seed: Seed) -> dict[str, Any]:
    figures = worth(model, seed.seed, seed.size.items)
    return shown(name, {"utility": figures.mean, "error": figures.error, "vouchers": figures.voucher})


def shown(name: str, figures: dict[str, Any]) -> dict[str, Any]:
    """Printed, so that a run that ends early leaves what it measured."""
    legible = {key: f"{value:.3f}" if isinstance(value, float) else str(value) for key, value in figures.items()}
    print(f"{name}: {', '.join(f'{key} {value}' for key, value in legible.items())}", flush=True)
    return figures


def short(method: MethodName | str, size: "Size") -> tuple[str, ...]:
    """A training of a few steps, where the run is small."""
    if not size.small:
        return ()
    validation = ("training.validation.every_steps=4", "training.validation.prompts=4")
    return (f"training.{method}.steps=4", *validation)


def forgiving(size: "Size") -> tuple[str, ...]:
    """A reward model of few thumbs counts, and few winners suffice, where the run is small."""
    few = ("rewards.reward_model.min_thumbs=100", "rewards.reward_model.min_users=20", "selection.min_winners=8")
    return few if size.small else ()


def _error(values: Sequence[float]) -> float:
    """Standard error of a mean over seeds."""
    mean = fmean(values)
    return math.sqrt(sum((value - mean) ** 2 for value in values) / (len(values) - 1) / len(values))
