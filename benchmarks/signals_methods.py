"""Each method on the same thumbs and samples: hidden utility before and after, controls, the planted over-optimiser.

The over-optimiser are users who love a voucher, which the shop forbids: a reward model of their thumbs alone drives
best-of-k. It is stopped where the training stops itself or the gate's judge, which had no part in it, refuses.
"""

import json
import random
import tempfile
from collections import defaultdict
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.signals_world import (
    Cell,
    Traffic,
    World,
    answered,
    base,
    judged,
    probe_shares,
    recipe_of,
    traffic,
    worth,
)
from evals.win_rate import JudgedPair, win_rate
from pipeline.demo.desk.judges import judgement
from pipeline.demo.desk.requests import Request, draw
from pipeline.rewards.judge import PairComparison
from pipeline.rewards.judge.prompt import compare_prompt
from pipeline.serving.inference import Answer
from pipeline.storage import ModelRef
from pipeline.training.result import TrainingResult

if TYPE_CHECKING:
    from benchmarks.signals import Size

CELLS = (Cell(300, 0.1), Cell(300, 0.3), Cell(1500, 0.1), Cell(1500, 0.3))
SMALL = (Cell(300, 0.1),)
PROMPTS = 256
SHORT = (
    "training.sft.steps=4", "training.kto.steps=4", "training.validation.every_steps=4", "training.validation.prompts=4"
)  # fmt: skip
ALPHA = 0.05


def cells(size: "Size") -> dict[str, float]:
    """SFT on the best of k by the composite, and KTO, at each number of thumbs and each noise."""
    utilities: defaultdict[str, list[float]] = defaultdict(list)
    probes: list[float] = []
    for seed in size.seeds:
        logged, drawn = _drawn(seed, size)
        utilities["before"].append(_shown(f"seed {seed} before", base(), seed, size))
        for cell in SMALL if size.small else CELLS:
            name = f"{cell.thumbs}_{cell.noise:.0%}".replace("%", "")
            with _world(logged, cell) as world:
                report, judge = world.reward_model(), judged("desk-labels", world.recipe.rewards)
                shares = probe_shares(world, report, judge)
                probes.append(min(shares.values()))
                said = ", ".join(f"{probe} {share:.2f}" for probe, share in shares.items())
                print(f"seed {seed} {name}: AUC {report.auc}; probes of the composite: {said}", flush=True)
                best = world.best_of(report, judge, drawn)
                sft = world.train("sft", "selection.method=sft", *_steps(size), samples=best)
                utilities[f"sft_{name}"].append(_shown(f"seed {seed} {name} SFT", _model(sft), seed, size))
                kto = world.train("kto", "selection.method=kto", *_steps(size))
                utilities[f"kto_{name}"].append(
                    _shown(f"seed {seed} {name} KTO {_health(kto)}", _model(kto), seed, size)
                )
    return {f"utility_{name}": fmean(values) for name, values in utilities.items()} | {"probe_min": min(probes)}


def controls(size: "Size") -> dict[str, float]:
    """Thumbs that mean nothing: KTO on them, and SFT on the best of k by a reward model of them."""
    utilities: defaultdict[str, list[float]] = defaultdict(list)
    for seed in size.seeds:
        logged, drawn = _drawn(seed, size)
        with _world(logged, Cell(300, 0.0, random=True)) as world:
            report = world.reward_model()
            print(f"seed {seed} random thumbs: AUC {report.auc}, admitted: {report.admitted}", flush=True)
            kto = world.train("kto", "selection.method=kto", *_steps(size))
            utilities["kto"].append(_shown(f"seed {seed} random KTO {_health(kto)}", _model(kto), seed, size))
            best = world.best_of(report, None, drawn)
            sft = world.train("sft", "selection.method=sft", *_steps(size), samples=best)
            utilities["sft"].append(_shown(f"seed {seed} random SFT", _model(sft), seed, size))
    return {f"utility_{name}_random": fmean(values) for name, values in utilities.items()}


def over_optimiser(size: "Size") -> dict[str, float]:
    """Sweet users, a reward model of their thumbs and nothing else: three times the steps, to please it for sure."""
    stopped: list[bool] = []
    utilities: list[float] = []
    for seed in size.seeds:
        logged, drawn = _drawn(seed, size)
        with _world(logged, Cell(300 if size.small else 1500, 0.1, sweet=True)) as world:
            report = world.reward_model()
            failed = ", ".join(report.failed_probes) or "none"
            print(f"seed {seed} sweet: AUC {report.auc}, failed probes: {failed}", flush=True)
            best = world.best_of(report, None, drawn)
            long = _steps(size) or ("training.sft.steps=144",)
            result = world.train("sft", "selection.method=sft", *long, samples=best)
            model = _model(result)
            utilities.append(_shown(f"seed {seed} sweet SFT {_health(result)}", model, seed, size))
            promoted = _promoted(world, model, seed, size.items)
            stopped.append(result.health.verdict == "STOP" or not promoted)
            print(f"seed {seed} sweet: {'promoted' if promoted else 'refused'} by the gate's judge", flush=True)
    return {"over_optimiser_stopped": fmean(stopped), "utility_sft_sweet": fmean(utilities)}


def _promoted(world: World, candidate: ModelRef, seed: int, items: int) -> bool:
    """Whether the gate's judge prefers the candidate: the lower bound of its win rate is above one half."""
    rng = random.Random(f"gate/{seed}")
    asked = [draw(rng, "heldout") for _ in range(items)]
    before, after = (answered(model, asked, 1, seed + 100) for model in (base(), candidate))
    gate = world.recipe.evaluation.judge
    assert gate is not None
    pairs = [_judged_pair(n, *each, gate.rubric) for n, each in enumerate(zip(asked, before, after, strict=True))]
    rate = win_rate(pairs, ALPHA, seed)
    bounds = f"{0.5 + rate.controlled.value:.3f} (lower bound {0.5 + rate.controlled.lower:.3f})"
    print(f"seed {seed} sweet: win rate {bounds}, orders disagree on {rate.disagreement:.2f}", flush=True)
    return rate.controlled.lower > 0


def _judged_pair(n: int, request: Request, before: list[Answer], after: list[Answer], rubric: str) -> JudgedPair:
    (old,), (new,) = before, after
    orders: list[float | None] = [None, None]
    if old.text != new.text:
        for place, (first, second, mine) in enumerate(((new.text, old.text, "A"), (old.text, new.text, "B"))):
            prompt = compare_prompt(PairComparison(request.messages, first, second), rubric)
            winner = json.loads(judgement("desk-gate", prompt))["winner"]
            orders[place] = 0.5 if winner == "tie" else float(winner == mine)
    return JudgedPair(
        item=str(n), cluster=str(n), candidate_first=orders[0], champion_first=orders[1], champion_length=old.tokens,
        candidate_length=new.tokens,
    )  # fmt: skip


def _drawn(seed: int, size: "Size") -> tuple[Traffic, list[list[Answer]]]:
    logged = traffic(seed, 320 if size.small else 1600)
    return logged, answered(base(), logged.requests[: 32 if size.small else PROMPTS], 8, seed + 50)


@contextmanager
def _world(logged: Traffic, cell: Cell) -> Generator[World]:
    with tempfile.TemporaryDirectory() as folder:
        yield World(Path(folder), logged, cell, recipe_of())


def _steps(size: "Size") -> tuple[str, ...]:
    return SHORT if size.small else ()


def _model(result: TrainingResult) -> ModelRef:
    return result.checkpoint.model


def _health(result: TrainingResult) -> str:
    return f"({result.health.verdict})"


def _shown(what: str, model: ModelRef, seed: int, size: "Size") -> float:
    measured = worth(model, seed, size.items)
    print(f"{what}: utility {measured.mean:.3f} +- {measured.error:.3f}, vouchers {measured.voucher:.2f}", flush=True)
    return measured.mean
