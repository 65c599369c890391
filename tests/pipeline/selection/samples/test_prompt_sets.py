"""A prompt set from its file to the choice of a method: nobody has answered it but the champion, just now."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core.storage import ModelRef, Store
from pipeline.recipe import Recipe, Samples, Selection
from pipeline.recipe.rewards import Rewards, Weights
from pipeline.recipe.sources import PromptsSource
from pipeline.recipe.traces import Traces
from pipeline.rewards.label import label_traces
from pipeline.rewards.records import RewardLabels
from pipeline.selection.choose import choose
from pipeline.selection.draw import FreshSamples
from pipeline.selection.preferences import PreferenceDataset, ScoredSamples, build
from pipeline.selection.samples import Scorers, sample
from pipeline.selection.trainable import HeldApart
from pipeline.serving.inference import Answer, AnswerRequest, Sampling, unanswerable
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import local_lake
from pipeline.traces.scope import consented
from tests.contexts import context_of, recipe_of
from tests.evals.conftest import DECODING
from tests.pipeline.traces.conftest import govern, write
from tests.pipeline.traces.sources.test_prompts import problem, section

NUMBERS = range(10, 110)
NOTHING = HeldApart({})
SECTION = Samples(prompts=80, per_prompt=4, max_completion_tokens=16)
SETTINGS = Selection(min_prompts=20, min_pairs=20, held_out_share=0.1, max_zero_variance_share=0.9)


class Calculator:
    """A model that adds one right half of the time, and takes no prompt of `refused`."""

    decoding = DECODING

    def __init__(self, refused: str = "never") -> None:
        self.refused, self.requests = refused, 0

    @contextmanager
    def __call__(self, section: Samples) -> Generator[Calculator]:
        yield self

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Generator[Calculator]:
        yield self

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Any) -> None:
        for request in requests:
            self.requests += 1
            question = request.messages[-1]["content"]
            if self.refused in question:
                done(unanswerable(request.key, "longer than the context"))
                continue
            number = int(question.split()[2]) + random.Random(request.seed).choice((1, 2))
            text = f"It is {number}.\n#### {number}"
            done(Answer(key=request.key, text=text, tokens=5, prompt_tokens=9, stop="stop", latency_s=0))


class World:
    """A hundred problems, governed and labelled."""

    def __init__(self, root: Path) -> None:
        self.store = Store(root / "data")
        source = section(write(root, "set.jsonl", [problem(n) for n in NUMBERS]))
        begun = govern(self.store, source, source.uri)
        self.work: IterationContext = context_of(
            self.store, begun.iteration, traces=Traces(source=source), samples=SECTION, selection=SETTINGS,
            rewards=Rewards(verified=Weights(correct=1.0)),
        )  # fmt: skip
        self.labels: RewardLabels = label_traces(self.work, None, ())

    def consented(self) -> Any:
        return consented(self.store, local_lake(self.store), self.work.iteration.dataset)

    def sample(self, engine: Calculator, apart: HeldApart = NOTHING) -> FreshSamples:
        return sample(
            self.work, self.labels.dataset, lambda: apart, self.consented, engine, Scorers(None, ())
        )  # fmt: skip

    def build(self, fresh: FreshSamples, apart: HeldApart = NOTHING) -> PreferenceDataset:
        return build(
            self.work, self.labels.dataset, apart, self.consented, self.labels.human_noise, ScoredSamples(fresh.dataset)
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_unanswered_prompts_have_no_label_and_lack_none(world: World) -> None:
    labels = world.labels
    assert (labels.labelled, labels.coverage, labels.checked) == (0, 1.0, 0)
    assert labels.unlabelled == labels.outcomes == {"unanswered": 100}


@pytest.mark.slow
def test_prompt_set_leads_to_grpo_by_its_samples(world: World) -> None:
    engine = Calculator()
    fresh = world.sample(engine)
    assert (fresh.prompts, fresh.drawn, engine.requests) == (80, 320, 320)
    assert fresh.outcomes.keys() == {"correct", "wrong"}
    dataset = world.build(fresh)
    evidence = dataset.evidence
    assert evidence.verifiable_prompts == evidence.prompts > 60
    assert (evidence.traces, evidence.labelled, evidence.coverage) == (4 * evidence.prompts, 4 * evidence.prompts, 1.0)
    assert evidence.frontier_prompts > 0.7 * evidence.prompts
    rows = pq.read_table(dataset.prompts.uri).to_pylist()
    assert len(rows) == evidence.frontier_prompts
    assert {(row["attempts"], row["verifier"]) for row in rows} == {(4, "math")}
    assert all(0 < row["pass_rate"] < 1 for row in rows)
    assert dataset.held_out_prompts.rows + evidence.prompts == 80
    assert choose(evidence, SETTINGS, world.work.recipe.rewards.min_coverage).method == "grpo"


def test_prompts_without_samples_train_nothing(world: World) -> None:
    dataset = build(world.work, world.labels.dataset, NOTHING, world.consented, world.labels.human_noise)
    assert (dataset.prompts.rows, dataset.pairs.rows, dataset.evidence.prompts) == (0, 0, 0)
    assert choose(dataset.evidence, SETTINGS, 0.5).method == "none"


@pytest.mark.slow
def test_prompt_beyond_the_context_is_counted(world: World) -> None:
    fresh = world.sample(Calculator(refused="What is 2"))
    assert fresh.refused > 0 and fresh.prompts + fresh.refused == 80
    assert world.build(fresh).evidence.prompts <= fresh.prompts


def test_prompt_set_needs_samples_and_is_no_traffic_of_a_model() -> None:
    source = section(Path("set.jsonl"))
    with pytest.raises(ValueError, match=r"nothing draws any\. Add a section samples"):
        recipe_of(traces=Traces(source=source))
    assert isinstance(recipe_of(traces=Traces(source=source), samples=SECTION), Recipe)


@pytest.mark.parametrize(
    ("changes", "message"), [({"consent": False}, "consent"), ({"licence": ""}, "licence"), ({"day": "soon"}, "day")]
)
def test_consent_licence_day_and_place_are_declared(changes: dict[str, Any], message: str) -> None:
    given = {"uri": "set.jsonl", "licence": "MIT", "consent": True, "day": "2026-01-05"}
    assert PromptsSource.model_validate(given).day.isoformat() == "2026-01-05"
    with pytest.raises(ValueError, match=message):
        PromptsSource.model_validate({**given, **changes})
