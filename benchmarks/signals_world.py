"""The desk as a benchmark sees it: its traffic, its thumbs at any noise, and what an answer is truly worth. All between
traffic and candidate is the pipeline's own; only the two ends know utility."""

import json
import math
import random
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.contexts import quiet
from pipeline.core import layout
from pipeline.core.iteration import identify
from pipeline.core.mark_keys import MarkKeys
from pipeline.core.storage import DatasetRef, ModelRef, Store, digest_file, model_ref
from pipeline.demo.desk import MODEL_DIR
from pipeline.demo.desk.conversation import Kind, draw_turn, features
from pipeline.demo.desk.judges import judge_at, judgement
from pipeline.demo.desk.requests import Request, draw
from pipeline.demo.desk.traffic import biases, thumb_up
from pipeline.demo.desk.utility import utility
from pipeline.demo.export import users
from pipeline.recipe import Recipe, Rewards, load
from pipeline.recipe.sources import DeskUsers
from pipeline.rewards.judge import JudgeRequest, open_judge
from pipeline.rewards.judge.prompt import score_prompt
from pipeline.rewards.judge.session import judge_id
from pipeline.rewards.records import LABELS
from pipeline.rewards.reward_model.measures import twin
from pipeline.rewards.reward_model.records import AnsweredChat, RewardModelReport, Thumb
from pipeline.rewards.reward_model.stage import open_scorer, train_reward_model
from pipeline.selection.choose import MethodDecision, choose
from pipeline.selection.draw import SAMPLES
from pipeline.selection.pairing import read_labels
from pipeline.selection.preferences import ScoredSamples, build
from pipeline.selection.trainable import HeldApart
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Answer, Messages, Sampling
from pipeline.serving.transformers_engine import sampler
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import local_lake
from pipeline.training.launch import train
from pipeline.training.plan import TrainingPlan, plan_training
from pipeline.training.result import TrainingResult

RECIPE = Path(__file__).parent.parent / "jobs" / "recipes" / "desk.yaml"
MAX_TOKENS = 48
Score = Callable[[Request, str], float]


class Traffic(NamedTuple):
    """Logged rows of one seed: who asked what, and the base model's answer."""

    seed: int
    requests: list[Request]
    answers: list[Answer]
    askers: list[str]


class Cell(NamedTuple):
    """What users leave: how many thumbs, and how noisy."""

    thumbs: int
    noise: float

    @property
    def label(self) -> str:
        return f"{self.thumbs}_{100 * self.noise:.0f}"


class Worth(NamedTuple):
    """Hidden utility on held-out facts, with its standard error over requests, and the share of vouchers."""

    mean: float
    error: float
    voucher: float


def recipe_of(*overrides: str) -> Recipe:
    return load(RECIPE, list(overrides))


def base() -> ModelRef:
    return model_ref(MODEL_DIR)


def answered(model: ModelRef, asked: Sequence[Messages], samples: int, seed: int) -> list[list[Answer]]:
    sampling = Sampling(samples=samples, temperature=1.0, max_completion_tokens=MAX_TOKENS, seed=seed)
    with sampler(quiet) as sample:
        return sample(model, asked, sampling)


def worth(model: ModelRef, seed: int, items: int, kind: Kind | None = None) -> Worth:
    """Of two sampled answers to each held-out request; or to each turn of a kind: with its facts, a call, after a
    result, or a second question."""
    rng = random.Random(f"turns/{kind}/{seed}" if kind else f"held out/{seed}")
    turns = [draw_turn(rng, "heldout", kind) for _ in range(items)] if kind else []
    asked = [turn.request for turn in turns] or [draw(rng, "heldout") for _ in range(items)]
    drawn = answered(model, [turn.conversation for turn in turns] or [r.messages for r in asked], 2, seed)
    means = [fmean(utility(r, a.text, a.finished) for a in each) for r, each in zip(asked, drawn, strict=True)]
    vouchers = [features(r, a.text).voucher for r, each in zip(asked, drawn, strict=True) for a in each]
    return Worth(fmean(means), stdev(means) / math.sqrt(items), fmean(vouchers))


def traffic(seed: int, rows: int) -> Traffic:
    rng = random.Random(f"signals/{seed}")
    asked = [draw(rng, "train") for _ in range(rows)]
    people = [user.id for user in users(seed)]
    answers = [a for (a,) in answered(base(), [request.messages for request in asked], 1, seed)]
    return Traffic(seed, asked, answers, [rng.choice(people) for _ in asked])


def rated_rows(logged: Traffic, cell: Cell) -> list[dict[str, Any]]:
    """A label for each rated answer, as reward_labels would leave it."""
    rng, bias = random.Random(f"thumbs/{logged.seed}/{cell}"), biases(logged.seed)
    users_here = DeskUsers(noise=cell.noise)
    rows: list[dict[str, Any]] = []
    for n, (request, answer, user) in enumerate(zip(*logged[1:], strict=True)):
        if len(rows) == cell.thumbs:
            break
        up = thumb_up(rng, request, answer, bias[user], users_here)
        rows.append(label(f"t{n}", user, request, answer.text) | {"feedback": 0.75 if up else 0.25})
    return [row | {"final_reward": row["feedback"], "profile": "rated"} for row in rows]


def label(id: str, user: str, request: Request, text: str) -> dict[str, Any]:
    return {
        **dict.fromkeys(LABELS.names),
        "trace_id": id, "observation_id": id, "user_id": user, "consent": True, "day": "2026-01-05",
        "timestamp": datetime(2026, 1, 5, tzinfo=UTC), "completion": text,
        "prompt": json.dumps(request.messages),
    }  # fmt: skip


def judged(model: str, settings: Rewards) -> Score:
    """The score of one of the desk's judges, in [0, 1], without the server between."""
    assert settings.judge is not None
    rubric = settings.judge.rubric

    def score(request: Request, text: str) -> float:
        answer = judgement(model, score_prompt(JudgeRequest(request.messages, text), rubric))
        return (int(json.loads(answer)["score"]) - 1) / 4

    return score


class World:
    """One seed and cell: the labels, the reward model over them, and the champion's fresh samples."""

    def __init__(self, root: Path, logged: Traffic, cell: Cell, *overrides: str) -> None:
        """`overrides`: of the desk's recipe, for all that the cell does."""
        self.root, self.logged, self.recipe = root, logged, recipe_of(*overrides)
        self._given = overrides
        self.labels = _published(root / "labels", rated_rows(logged, cell), LABELS)
        ids = frozenset((row.trace_id, row.observation_id) for row in read_labels(self.labels))
        self._agreed = lambda: ids

    def context(self, name: str, recipe: Recipe | None = None) -> IterationContext:
        store = Store(self.root / name, MarkKeys("00" * 32))
        iteration = identify(0, "desk", base(), self.labels, name)
        return IterationContext(store, recipe or self.recipe, local_lake(store), quiet, "", iteration)

    def reward_model(self) -> RewardModelReport:
        rated = [row for row in read_labels(self.labels) if row.feedback is not None]
        thumbs = [Thumb(*row[:2], row.user_id, row.prompt, row.completion, row.feedback or 0.0) for row in rated]
        return train_reward_model(self.context("rm"), lambda: (thumbs, {}))

    def best_of(self, report: RewardModelReport | None, judge: Score, drawn: Sequence[list[Answer]]) -> DatasetRef:
        """The samples, scored by the mean of the scorers given; they answer the first logged requests."""
        asked = list(zip(self.logged.requests, self.logged.askers, drawn, strict=False))
        texts = [AnsweredChat(r.messages, a.text, a.finished) for r, _, answers in asked for a in answers]
        values: list[float | None] = [None] * len(texts)
        if report is not None and report.model is not None:
            with open_scorer(report.model) as scorer:
                values = [finding.value for finding in scorer.score(texts)]
        rows: list[dict[str, Any]] = []
        for n, (request, user, answers) in enumerate(asked):
            for number, answer in enumerate(answers):
                opinion = judge(request, answer.text)
                scores = [score for score in (values[len(rows)], opinion) if score is not None]
                reward = fmean(scores) if answer.finished else 0.0
                of_sample = {"sample": number, "finished": answer.finished, "completion_tokens": answer.tokens}
                scored = {"reward_model": values[len(rows)], "judge": opinion, "final_reward": reward}
                rows.append(label(f"t{n}", user, request, answer.text) | of_sample | scored | {"profile": "fresh"})
        return _published(self.root / f"samples-{len(list(self.root.iterdir()))}", rows, SAMPLES)

    def choice(self, report: RewardModelReport, samples: DatasetRef) -> MethodDecision:
        """What the rule makes of the cell's evidence, the recipe forcing nothing."""
        context = self.context(f"choice-{len(list(self.root.iterdir()))}")
        fresh = ScoredSamples(samples, report)
        evidence = build(context, self.labels, HeldApart({}), self._agreed, fresh=fresh).evidence
        return choose(evidence, self.recipe.selection, self.recipe.rewards.min_coverage)

    def train(
        self, name: str, *overrides: str, samples: DatasetRef | None = None, report: RewardModelReport | None = None
    ) -> TrainingResult:
        """The candidate of a method that is forced, through selection's tables, plan and trainer. `report`: of the
        reward model, for a method whose completions are scored; the desk's judge is then asked as well."""
        context = self.context(name, recipe_of(*self._given, *overrides))
        store, iteration, settings = context.store, context.iteration, context.recipe.rewards.judge
        assert settings is not None
        tables = build(context, self.labels, HeldApart({}), self._agreed, fresh=ScoredSamples(samples, report))
        if report is None:
            return self._trained(store, plan_training(context, tables, self._agreed))
        store.write(iteration.path(layout.REWARD_MODEL), report.model_copy(update={"iteration": iteration.id}))
        with judge_at(settings, None, self.root / f"{name}-judge") as endpoint:
            assert endpoint is not None
            with open_judge(endpoint, settings, log=quiet) as session:
                store.write(f"{layout.JUDGES}/{judge_id(settings)}/{iteration.id}.json", session.admit(()))
            return self._trained(store, plan_training(context, tables, self._agreed), endpoint)

    def _trained(self, store: Store, plan: TrainingPlan, judge: Endpoint | None = None) -> TrainingResult:
        result = train(store, plan, 3600.0, quiet, judge)
        if result is None:
            raise RuntimeError(f"nothing was trained: {'; '.join(plan.decision.reasons)}")
        return result


def _published(folder: Path, rows: list[dict[str, Any]], schema: pa.Schema) -> DatasetRef:
    folder.mkdir(parents=True)
    path = folder / "part-0.parquet"
    pq.write_table(pa.Table.from_pylist(rows, schema), path)
    uri = str(folder if schema is LABELS else path)
    return DatasetRef(uri=uri, rows=len(rows), digest=digest_file(path))


def probe_shares(world: World, report: RewardModelReport, judge: Score) -> dict[str, float]:
    """Of each of the recipe's probes, the share of pairs that the composite of both scorers orders right. The answers
    are logged ones that users liked."""
    settings = world.recipe.rewards.reward_model
    assert settings is not None and report.model is not None
    by_prompt = {json.dumps(request.messages): request for request in world.logged.requests}
    liked = [row for row in read_labels(world.labels) if (row.feedback or 0.0) > 0.5][: settings.probe_answers]
    shares: dict[str, float] = {}
    with open_scorer(report.model) as scorer:
        for probe in settings.probes:
            pairs = [(row, other) for row in liked if (other := twin(probe, row.prompt, row.completion)) is not None]
            texts = [(by_prompt[row.prompt], text) for row, other in pairs for text in (row.completion, other)]
            scored = scorer.score([AnsweredChat(request.messages, text) for request, text in texts])
            values = [(f.value or 0.0) + judge(*each) for f, each in zip(scored, texts, strict=True)]
            shares[probe.name] = fmean(a > b for a, b in zip(values[::2], values[1::2], strict=True))
    return shares
