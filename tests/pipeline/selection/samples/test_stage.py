"""Fresh samples of logged prompts: who is asked what, what it is worth, and that nothing is drawn twice."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from pipeline.core import layout
from pipeline.core.storage import ModelRef
from pipeline.governance import erasure
from pipeline.governance.erasure.records import Person
from pipeline.recipe import Samples, Selection
from pipeline.recipe.rewards import Rewards, Rules, Weights
from pipeline.rewards.label import label_traces
from pipeline.rewards.records import RewardLabels
from pipeline.selection.draw import UNENDED, FreshSamples
from pipeline.selection.pairing import read_labels
from pipeline.selection.preferences import ScoredSamples, build
from pipeline.selection.samples import Scorers, governed_rows, metadata_of, sample
from pipeline.selection.trainable import HeldApart
from pipeline.serving.inference import Answer, AnswerRequest, InferenceEngine, Sampling
from pipeline.traces.context import IterationContext
from pipeline.traces.scope import consented
from tests.contexts import context_of, stage_context
from tests.evals.conftest import DECODING
from tests.evals.people import DAYS, People, asked, section_of
from tests.pipeline.governance.erasure.conftest import NAME, NOW, secret
from tests.pipeline.governance.erasure.looking import holding
from tests.pipeline.rewards.functions import write_function

pytestmark = pytest.mark.slow

USERS = tuple(f"user-{name}x-{n:04d}" for n, name in enumerate(("aa", "bb", "cc", "dd")))
SECTION = Samples(prompts=500, per_prompt=4, max_completion_tokens=16)
REWARDS = Rewards(fresh=Weights(length=1.0), rules=Rules(min_chars=10, max_chars=40))
NOTHING = HeldApart({})
Engine = Callable[[Samples], AbstractContextManager[InferenceEngine]]


class Babbler:
    """A model whose answers differ in length, one of them without an end."""

    decoding = DECODING

    def __init__(self, dies_after: int | None = None) -> None:
        self.left, self.requests = dies_after, 0

    @contextmanager
    def __call__(self, section: Samples) -> Generator[Babbler]:
        yield self

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Generator[Babbler]:
        assert (arm, model.uri) == ("champion", "base")
        yield self

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        assert sampling.skip_unanswerable
        for request in requests:
            if self.left is not None and self.requests >= self.left:
                raise RuntimeError("the engine ended")
            self.requests += 1
            words = random.Random(request.seed).randint(1, 12)
            stop = "length" if words == 12 else "stop"
            done(Answer(key=request.key, text="word " * words, tokens=words, prompt_tokens=9, stop=stop, latency_s=0))


class World:
    """Four users whose questions have no reference answer, labelled."""

    def __init__(self, root: Path, **changes: Any) -> None:
        self.people = People(root / "data")
        rows = [each for user in USERS for each in asked(user, DAYS[0], reference=None, **changes)]
        begun = self.people.window(DAYS[0], rows, section_of())
        selection = Selection(method="dpo", max_principal_share=1.0, held_out_share=0.0)
        self.work: IterationContext = context_of(
            self.people.store, begun.iteration, self.people.lake, samples=SECTION, rewards=REWARDS, selection=selection
        )
        self.labels: RewardLabels = label_traces(self.work, None, ())

    def consented(self) -> Collection[tuple[str, str]]:
        return consented(self.people.store, self.people.lake, self.work.iteration.dataset)

    def sample(self, engine: Engine, apart: HeldApart = NOTHING, work: IterationContext | None = None) -> FreshSamples:
        return sample(work or self.work, self.labels.dataset, lambda: apart, self.consented, engine, Scorers(None, ()))

    def again(self) -> None:
        """Takes the record away, as `jobs.retry` does."""
        self.people.store.path(self.work.path(layout.FRESH)).unlink()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def rows_of(fresh: FreshSamples) -> list[dict[str, Any]]:
    assert fresh.dataset is not None
    return pq.read_table(fresh.dataset.uri).to_pylist()


def test_samples_make_pairs_where_logged_rows_make_none(world: World) -> None:
    fresh = world.sample(Babbler())
    assert (fresh.prompts, fresh.drawn, fresh.remembered, fresh.refused) == (12, 48, 0, 0)
    rows = rows_of(fresh)
    assert {row["profile"] for row in rows} == {"fresh"}
    for row in rows:
        words = len(row["completion"].split())
        assert row["finished"] == (words < 12)
        expected = 0.0 if words == 12 else float(10 <= len(row["completion"].strip()) <= 40)
        assert row["final_reward"] == pytest.approx(expected, abs=0.3), row
        assert (row["outcome"] == UNENDED) == (words == 12)
    alone = build(world.work, world.labels.dataset, HeldApart({}), world.consented)
    assert alone.pairs.rows == 0
    world.people.store.path(world.work.path(layout.PREFERENCES)).unlink()
    together = build(
        world.work, world.labels.dataset, HeldApart({}), world.consented, fresh=ScoredSamples(fresh.dataset)
    )
    prompts = {row["prompt"] for row in rows}
    rewards = [[row["final_reward"] for row in rows if row["prompt"] == prompt] for prompt in prompts]
    assert together.pairs.rows == sum(max(each) >= 0.7 and min(each) < 0.5 for each in rewards) > 6


def test_killed_draw_goes_on_where_it_was(world: World) -> None:
    with pytest.raises(RuntimeError, match="the engine ended"):
        world.sample(Babbler(dies_after=20))
    rest = Babbler()
    assert (world.sample(rest).remembered, rest.requests) == (20, 28)
    first = rows_of(world.sample(Babbler()))
    world.again()
    idle = Babbler()
    fresh = world.sample(idle)
    assert (fresh.drawn, fresh.remembered, idle.requests) == (0, 48, 0)
    assert rows_of(fresh) == first


def test_no_prompt_of_an_evaluation_is_answered(world: World) -> None:
    prompts = [row.prompt for row in read_labels(world.labels.dataset)]
    assert world.sample(Babbler(), HeldApart({}, prompts[:3])).prompts == 9
    world.again()
    assert world.sample(Babbler(), HeldApart({}, prompts)).prompts == 0


def test_one_user_has_their_share_of_the_prompts(world: World) -> None:
    selection = Selection(max_principal_share=0.1)
    work = context_of(world.people.store, world.work.iteration, world.people.lake, samples=SECTION, rewards=REWARDS,
                      selection=selection)  # fmt: skip
    assert world.sample(Babbler(), work=work).prompts == len(USERS)


def test_forgotten_user_leaves_no_sample(world: World) -> None:
    root, user = world.people.root, USERS[0]
    world.sample(Babbler())
    before = holding(root, secret(user))
    assert any(name.startswith("iterations/") and "/samples/" in name for name in before)
    journals = list(root.glob("samples/answers/*/*.jsonl"))
    lines = sum(len(path.read_text().splitlines()) for path in journals)
    proof = erasure.forget(
        stage_context(world.people.store, world.people.lake, name=NAME), Person.named(user),
        registry_uri=world.people.tracking_uri, now=NOW,
    )  # fmt: skip
    assert proof.remains == ()
    assert holding(root, secret(user)) == set()
    assert sum(len(path.read_text().splitlines()) for path in journals) == lines - 12


ONE = """
    def reward(prompt, completion, reference, metadata):
        return 1
"""


def test_metadata_is_found_by_trace_and_prompt(tmp_path: Path) -> None:
    world = World(tmp_path, metadata='{"tier": "gold"}')
    rewards = REWARDS.model_copy(update={"custom": write_function(tmp_path, ONE)})
    work = replace(world.work, recipe=world.work.recipe.model_copy(update={"rewards": rewards}))
    rows = read_labels(world.labels.dataset)
    metadata = metadata_of(work, {row.trace_id for row in rows})
    assert metadata.keys() == {(row.trace_id, row.prompt) for row in rows}
    assert {str(json.loads(text)) for text in metadata.values()} == {"{'tier': 'gold'}"}
    some = {row.trace_id for row in rows[:2]}
    assert {row.trace_id for row in governed_rows(work, some)} == some
