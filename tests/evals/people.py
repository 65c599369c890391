"""A deployment whose suites come from its traces: sixty people, each of whom asks three things in their own words."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from evals.evaluate import EvalServices, decide, evaluate
from evals.freezing import held_apart, withdraw
from evals.gate import GateVerdict
from evals.records import EvalPlan
from evals.suites import Suite, asked_by
from pipeline.core.iteration import identify
from pipeline.core.storage import CheckpointRef, ModelRef, Store
from pipeline.recipe import Evaluation, Selection
from pipeline.recipe.rewards import Verifier
from pipeline.recipe.suites import JudgedSuite, TracesSuite
from pipeline.rewards.label import label_traces
from pipeline.rewards.records import RewardLabels
from pipeline.rewards.verifiers import Grade, VerifierTask
from pipeline.selection.preferences import PreferenceDataset, build
from pipeline.selection.trainable import HeldApart
from pipeline.serving.inference import Answer, AnswerRequest, Sampling
from pipeline.traces.context import IterationContext
from pipeline.traces.records import GovernedTraces
from pipeline.traces.scope import consented
from tests.contexts import context_of
from tests.grading import grade
from tests.pipeline.governance.erasure.conftest import BASE, NAME, NOW, Place, row, secret

from .conftest import DECODING

DAYS = ("2026-01-05", "2026-01-06", "2026-01-07")
USERS = tuple(f"user-{chr(97 + n // 26)}{chr(97 + n % 26)}x-{n:04d}" for n in range(60))
THINGS = ("apples", "bridges", "candles")
SUITE = TracesSuite(name="production", preset="production", role="target")
CANDIDATE = ModelRef(uri="models/new", digest="new")


def section_of(*listed: TracesSuite | JudgedSuite, **changes: Any) -> Evaluation:
    values = {"max_standard_error": 0.5, "guard_margin": 0.3, "samples_per_item": 2}
    return Evaluation(suites=listed or (SUITE,), **{**values, **changes})


def question(user: str, thing: str, more: str = "") -> str:
    return f"Say as {secret(user)} how many {thing} {user[5:8]}{thing} has {more}of these".replace("  ", " ")


def asked(user: str, day: str, more: str = "", **changes: Any) -> list[dict[str, Any]]:
    """The user's rows of a day: each question once, answered wrongly."""
    rows: list[dict[str, Any]] = []
    for number, thing in enumerate(THINGS):
        messages = [{"role": "user", "content": question(user, thing, more), "tool_calls": None}]
        known = {"messages": messages, "reference": f"{number + 1}", "completion": f"{secret(user)} says #### 9"}
        rows.append({**row(user, day, number), **known, "feedback": [], "feedback_count": 0, **changes})
    return rows


@dataclass
class People(Place):
    """The small deployment of the erasure's tests, with an evaluation over what these people ask."""

    def window(self, day: str, rows: Sequence[dict[str, Any]], section: Evaluation) -> IterationContext:
        """Govern a day and label it; the work on the iteration that it begins."""
        self.govern(day, rows)
        dataset = self.publish(day)
        iteration = identify(0, NAME, BASE, dataset, digest(section))
        governed = GovernedTraces(iteration=iteration, source="s", days=(self.reports()[day],))
        self.store.write(iteration.path("traces.json"), governed)
        self.store.write("iterations/latest.json", iteration)
        selection = Selection(method="dpo", max_principal_share=1.0, held_out_share=0.0)
        return context_of(self.store, iteration, self.lake, selection=selection, evaluation=section)

    def select(self, work: IterationContext, now: datetime = NOW) -> tuple[PreferenceDataset, tuple[Suite, ...]]:
        """Labels, and what the asset `preference_dataset` does."""
        labels: RewardLabels = label_traces(work, None, ())
        frozen = held_apart(work, labels.dataset, now).frozen
        listed = asked_by(work.store, work.recipe.evaluation, work.iteration)
        consent = partial(consented, work.store, work.lake, work.iteration.dataset)
        return build(work, labels.dataset, HeldApart({}, frozen), consent), listed

    def gate(self, work: IterationContext) -> GateVerdict:
        """What the assets `eval_report` and `gate_verdict` do."""
        withdraw(work)
        checkpoint = CheckpointRef(adapter=CANDIDATE, model=CANDIDATE, step=1)
        section = work.recipe.evaluation
        plan = EvalPlan(iteration=work.iteration, section=section, verifier=Verifier(), candidate=checkpoint)
        return decide(work, evaluate(work.store, plan, EvalServices(Parrots(), check), work.log))


def digest(section: Evaluation) -> str:
    return str(hash(section.model_dump_json()))


def later(days: int) -> datetime:
    return NOW + timedelta(days=days)


def check(tasks: Sequence[VerifierTask]) -> list[Grade]:
    return grade(tasks, workers=1, timeout_s=5.0)


class Parrots:
    """An engine whose models repeat the question, and whose candidate knows more answers."""

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Iterator[Parrot]:
        yield Parrot(0.9 if model.digest == "new" else 0.2)


class Parrot:
    decoding = DECODING

    def __init__(self, skill: float) -> None:
        self.skill = skill

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        for request in requests:
            content = request.messages[-1]["content"]
            right = next(n for n, thing in enumerate(THINGS, start=1) if f" {thing} " in content)
            number = right if random.Random(request.seed).random() < self.skill else 0
            text = f"{content}: #### {number}"
            done(Answer(key=request.key, text=text, tokens=4, prompt_tokens=9, stop="stop", latency_s=0))


def prompts_in(store: Store, work: IterationContext) -> str:
    """All texts of the preference tables."""
    import pyarrow.parquet as pq

    tables = sorted(store.path(work.path("preference_dataset")).glob("*.parquet"))
    return json.dumps([pq.read_table(path).to_pylist() for path in tables], default=str)
