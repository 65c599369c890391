"""Iterations as their stages leave them, laid without running one: every record, and any of them broken."""

from functools import cache
from pathlib import Path
from typing import Any

from assets.records import Ending, begin, conclude
from evals.gate import GateVerdict, Verdict
from evals.records import EvalReport
from pipeline.core import layout
from pipeline.core.estimate import UNKNOWN
from pipeline.core.iteration import Iteration, identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store
from pipeline.recipe import Recipe, Rewards, Training, TrainingSettings, load
from pipeline.rewards.records import RewardLabels
from pipeline.traces.records import DayReport, FileReport, GovernedTraces, Reason
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import CAUSES, Goodput, Health, HealthFinding, Preemption, TrainingResult
from tests.evals.conftest import Kit
from tests.pipeline.rollout.conftest import BASE, NAME, World, version_of
from tests.pipeline.selection.test_choose import decide

EMBEDDED = Path(__file__).parents[2] / "jobs" / "recipes" / "embedded.yaml"
NOWHERE = DatasetRef(uri="d", rows=100, digest="d" * 64, snapshot="s1")
DAY = "2026-01-05"
HOURS, DEVICES = 0.5, 4
"""Of the training, on each device."""
SECONDS = HOURS * 3600 + 100.0
METRICS = tuple(
    {"step": float(step), "accuracy": 0.4 + step / 50, "held_out/accuracy": 0.4 + step / 40} for step in range(1, 11)
)


def recipe_of(root: Path, *overrides: str) -> Recipe:
    return load(EMBEDDED, [f"data_root={root}", f"base_model.name={NAME}", *overrides])


@cache
def report_of(**changes: Any) -> EvalReport:
    """Of a candidate that is better; `changes`: of the section evaluation."""
    kit = Kit()
    section = kit.section(**changes)
    suite = kit.suite(section)
    return kit.report(section, suite, kit.arm("a", section, suite, 0.7), kit.arm("b", section, suite, 0.9))


class Laid:
    """A data root whose iterations are laid one by one, and whose rollouts a scripted world runs."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root)
        self.world = World(self.store)

    def begin(self, data: str = "data") -> Iteration:
        """The next iteration over the champion of now, with what its first stage leaves."""
        state = self.world.state
        champion = state.past.champion.model if state.past.champion else BASE
        # The same inputs as of the world's proposals, so the same id.
        iteration = identify(state.past.promotions, NAME, champion, DatasetRef(uri="d", rows=70, digest=data), "recipe")
        file = FileReport(name="f", sha256="f", bytes=1, seen=100, admitted=80, rejected={Reason.CONSENT: 20})
        day = DayReport(day=DAY, rules="r", digest="d", files=(file,))
        governed = GovernedTraces(iteration=iteration, source="s", days=(day,))
        self.store.write(iteration.path(layout.GOVERNED), governed)
        self.store.write(layout.LATEST, iteration)
        begin(self.store, iteration)
        return iteration

    def label(self, iteration: Iteration, **changes: Any) -> None:
        labels = RewardLabels(
            iteration=iteration.id, dataset=NOWHERE, labelled=60, coverage=0.75, unlabelled={"no_signal": 20},
            outcomes={}, mean_reward=0.5, histogram=(3,) * 20, components={},
            checked=60, remembered=0, tokens=0, usd=0.0,
            human_noise=UNKNOWN,
        ).model_copy(update=changes)  # fmt: skip
        self.store.write(iteration.path(layout.LABELS), labels)

    def plan(self, iteration: Iteration, method: str = "grpo", **decided: Any) -> None:
        decision = decide().model_copy(update={"method": method, "reasons": ("enough prompts",), **decided})
        plan = TrainingPlan(
            iteration=iteration.id, decision=decision, base=iteration.champion, held_out=None, without_consent=0,
            data=None if method == "none" else NOWHERE,
            method=None if method == "none" else Training().by_name()[method],
            training=TrainingSettings(), rewards=Rewards(), nodes=1, processes=DEVICES, peak_tflops=1.0,
        )  # fmt: skip
        self.store.write(iteration.path(layout.PLAN), plan)

    def train(self, iteration: Iteration, digest: str = "a", **changes: Any) -> None:
        goodput = Goodput(
            total_s=SECONDS, productive_s=SECONDS / 2, badput_s={**dict.fromkeys(CAUSES, 0.0), "waiting": 100.0,
            "start": SECONDS / 2 - 100.0},
        )  # fmt: skip
        models = {name: ModelRef(uri="x", digest=each) for name, each in (("adapter", "x"), ("model", digest))}
        result = TrainingResult(
            iteration=iteration.id, plan_digest="p", metrics=METRICS, seconds=60.0, attempts=2, resumed_from=(4,),
            checkpoint=CheckpointRef(**models, step=10),
            health=Health(findings=(HealthFinding(verdict="PASS", rule="solved", step=9, reason="all are right"),)),
            goodput=goodput, preemptions=(Preemption(cause="SIGTERM", step=5, lost_steps=1),),
        ).model_copy(update=changes)  # fmt: skip
        self.store.write(iteration.path(layout.RESULT), result)

    def evaluate(self, iteration: Iteration, verdict: Verdict = Verdict.PASS, **changes: Any) -> None:
        report = report_of(**changes)
        said = GateVerdict(
            iteration=iteration.id, verdict=verdict, reasons=("improvement shown",), champion=report.champion,
            candidate=report.candidate, protocol="p", report_digest="r" * 64, bundle_digest="b" * 64,
        )  # fmt: skip
        self.store.write(iteration.path(layout.EVAL_REPORT), report)
        self.store.write(iteration.path(layout.GATE_VERDICT), said)

    def until_verdict(self, digest: str = "a", verdict: Verdict = Verdict.PASS, data: str = "data") -> Iteration:
        """Every stage up to the gate."""
        iteration = self.begin(data)
        self.label(iteration)
        self.plan(iteration)
        self.train(iteration, digest)
        self.evaluate(iteration, verdict)
        return iteration

    def end(self, iteration: Iteration, ending: Ending, detail: str = "why it ended") -> Iteration:
        conclude(self.store, iteration, ending, detail)
        return iteration

    def roll_out(self, digest: str = "a", number: int = 1, until: str = "promoted", data: str = "data") -> Iteration:
        """An iteration whose candidate is rolled out as far as that."""
        iteration = self.until_verdict(digest, data=data)
        self.store.write(iteration.path(layout.MODEL_VERSION), version_of(digest, number, iteration))
        self.world.propose(digest, number=number, data=data)
        self.end(iteration, "rollout", f"version {number}")
        if until == "rolled_back":
            self.world.metrics.canary = {"quality": 0.1}
        self.world.tick_until(until)
        return iteration
