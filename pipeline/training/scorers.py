"""Who scores completions that no reference can check. In the plan: which scorers reward them, and which one watches
held-out prompts, where a policy that learns to please its reward shows first (arXiv 2210.10760): the one named, else
the one that the reward weighs least. In a training: what each says of a completion; one that could not speak gives no
score, never a 0."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from pipeline.core import layout
from pipeline.core.journal import Journal, JournalEntry
from pipeline.core.storage import ModelRef, Record
from pipeline.recipe import Rewards, Training
from pipeline.recipe.rewards import Judge, TokenPrice
from pipeline.recipe.training import ScorerName
from pipeline.rewards.custom import CustomScorer, CustomTask
from pipeline.rewards.findings import key_of
from pipeline.rewards.judge import Budget, Judgement, JudgeRequest, JudgeSession, open_judge
from pipeline.rewards.judge.session import judge_endpoint, judge_id
from pipeline.rewards.records import Finding
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.rewards.verifiers import VerifierTask
from pipeline.traces.context import IterationContext
from pipeline.training.journal import emit
from pipeline.training.schedule import metadata_behind, metadata_by_prompt

if TYPE_CHECKING:
    from pipeline.training.plan import TrainingPlan

SCORERS: tuple[ScorerName, ...] = ("judge", "reward_model", "custom")


class FreshScorers(Record):
    """The scorers of a training."""

    reward: tuple[ScorerName, ...] = ()
    """Those that the reward of a completion without a reference is composed of, with the rules; empty where the rows
    have references, or nothing is drawn."""
    watching: ScorerName
    """Scores the answers to held-out prompts."""
    reward_model: ModelRef | None = None
    """The iteration's own, where it rewards or watches."""

    @property
    def ask_judge(self) -> bool:
        return "judge" in (*self.reward, self.watching)


def scorers_of(context: IterationContext, on_scores: bool) -> FreshScorers | None:
    """The scorers of a training on completions without references (`on_scores`), or on others where the recipe names a
    second scorer. Raises ValueError for what the recipe or the iteration lacks."""
    rewards, training = context.recipe.rewards, context.recipe.training
    chosen = training.validation.scorer
    if not on_scores and chosen is None:
        return None
    configured: list[ScorerName] = [name for name in SCORERS if getattr(rewards, name) is not None]
    reward: tuple[ScorerName, ...] = ()
    if on_scores:
        reward = tuple(name for name in configured if getattr(rewards.fresh, name) > 0)
        _refuse_uncarried(training, rewards, reward)
    if chosen is not None and chosen not in configured:
        raise ValueError(f"training.validation.scorer names {chosen}, and there is none: add rewards.{chosen}.")
    watching: ScorerName = chosen or min(configured, key=lambda name: getattr(rewards.fresh, name))
    if reward == (watching,):
        raise ValueError(
            f"rewards.fresh pays by {watching} alone, and nothing else could watch the training. Add a second scorer "
            f"({', '.join(name for name in SCORERS if name != watching)}) to rewards, or train by another method."
        )
    used = {*reward, watching}
    admitted = rewards.judge is None or any(context.store.path(layout.JUDGES, judge_id(rewards.judge)).glob("*.json"))
    if "judge" in used and not admitted:
        raise ValueError(
            "The judge of rewards.judge was never admitted. Weigh it in rewards.judged or rewards.fresh, and make the "
            "labels and samples again, so that it is examined before it scores a training."
        )
    model = _admitted_model(context) if "reward_model" in used else None
    return FreshScorers(reward=reward, watching=watching, reward_model=model)


def _refuse_uncarried(training: Training, rewards: Rewards, reward: tuple[ScorerName, ...]) -> None:
    problem = ""
    if training.engine != "trl":
        problem = f"training.engine {training.engine} knows right and wrong alone. Set trl"
    elif not reward:
        problem = "rewards.fresh weighs no scorer that the recipe has. Add rewards.judge or rewards.reward_model"
    elif not training.validation.every_steps:
        problem = "a second scorer has to watch held-out prompts. Set training.validation.every_steps"
    elif not training.checkpoints.keep_best:
        problem = "the checkpoint that the second scorer likes best is what stays. Set training.checkpoints.keep_best"
    if problem:
        raise ValueError(f"The prompts have no reference answers, and {problem}, or train by another method.")


def _admitted_model(context: IterationContext) -> ModelRef:
    report = context.store.read(context.iteration.path(layout.REWARD_MODEL), RewardModelReport)
    if report is None or report.model is None or not report.counts_beside(context.recipe.rewards.fresh):
        why = "it is not there" if report is None else report.reason or "; ".join(report.reasons)
        raise ValueError(
            f"The iteration's reward model may not score a training: {why}. Give it no weight in rewards.fresh, and "
            "another training.validation.scorer, or collect what it lacks."
        )
    return report.model


SCORING_BATCH = 32
"""Completions that the reward model reads at once."""
UNENDED = Finding(0.0)
JUDGED = "judge-{rank}.jsonl"


class FreshAnswer(NamedTuple):
    """A completion of the policy. `prompt`: chat messages as JSON; `ended`: by its end token, not at its limit.
    `check`: None where there is no reference."""

    prompt: str
    text: str
    ended: bool
    check: VerifierTask | None = None


Scorer = Callable[[Sequence[FreshAnswer]], list[Finding]]


class FreshScores:
    """Scorers by name: those that reward, and the one that watches."""

    def __init__(self, scorers: Mapping[ScorerName, Scorer], reward: Sequence[ScorerName], second: ScorerName) -> None:
        self._scorers, self._reward = scorers, reward
        self._second: ScorerName = second

    def rewarding(self, answers: Sequence[FreshAnswer]) -> list[dict[str, Finding]]:
        """What those that reward say of each answer that has ended, by name."""
        said = [(name, self._scorers[name](answers)) for name in self._reward]
        return [{str(name): findings[at] for name, findings in said} for at in range(len(answers))]

    def watching(self, answers: Sequence[FreshAnswer]) -> list[Finding]:
        """The second scorer's finding on each; an answer that has not ended is worth 0."""
        ended = [answer for answer in answers if answer.ended]
        said = iter(self._scorers[self._second](ended) if ended else ())
        return [next(said) if answer.ended else UNENDED for answer in answers]


@contextmanager
def open_scores(plan: TrainingPlan, folder: Path) -> Generator[FreshScores]:
    """The scorers of a plan that has some, until the block ends; none is asked yet. `folder`: the training's. Raises
    ValueError for a scorer that cannot be used as the plan has it."""
    assert plan.scorers is not None, "only a plan with scorers comes here"
    makers = {"reward_model": _reward_model, "judge": _judge, "custom": _custom}
    wanted: set[ScorerName] = {*plan.scorers.reward, plan.scorers.watching}
    with ExitStack() as stack:
        scorers: dict[ScorerName, Scorer] = {name: makers[name](plan, folder, stack) for name in wanted}
        yield FreshScores(scorers, plan.scorers.reward, plan.scorers.watching)


def _reward_model(plan: TrainingPlan, folder: Path, stack: ExitStack) -> Scorer:
    from pipeline.rewards.reward_model.network import RewardModel
    from pipeline.rewards.reward_model.records import AnsweredChat

    assert plan.scorers is not None and plan.scorers.reward_model is not None, "the plan names its folder"
    model = RewardModel.load(plan.scorers.reward_model.uri)
    return lambda answers: model.score(
        [AnsweredChat(json.loads(a.prompt), a.text, a.ended) for a in answers], SCORING_BATCH
    )


def _judge(plan: TrainingPlan, folder: Path, stack: ExitStack) -> Scorer:
    settings, endpoint = plan.rewards.judge, judge_endpoint(os.environ)
    assert settings is not None, "the plan's scorers are those that its rewards have"
    if endpoint is None:
        raise ValueError("The plan's completions are scored by a judge, and JUDGE_URL is not set. Set it, and retry.")
    rank = int(os.environ.get("RANK", "0"))
    budget = budget_of(settings, folder, rank, plan.world_size)
    session = stack.enter_context(open_judge(endpoint, settings, budget, emit))
    return JudgeScores(session, settings, budget, folder, rank)


def _custom(plan: TrainingPlan, folder: Path, stack: ExitStack) -> Scorer:
    assert plan.rewards.custom is not None, "the plan's scorers are those that its rewards have"
    custom = CustomScorer(plan.rewards.custom)
    stack.callback(custom.close)
    custom.start()
    metadata = metadata_by_prompt(plan.data, plan.held_out)

    def score(answers: Sequence[FreshAnswer]) -> list[Finding]:
        tasks = [CustomTask(each.prompt, each.text, None, metadata_behind(each.prompt, metadata)) for each in answers]
        return [each.finding for each in custom(tasks)]

    return score


class ScoreLine(JournalEntry, kw_only=True):
    """One judgement. `tokens` and `usd`: all that this process has spent so far."""

    score: float | None
    reason: str
    tokens: int
    usd: float


def spending_in(folder: Path) -> tuple[int, float]:
    """Tokens and US dollars, of all processes and attempts of the training in `folder`."""
    journals = [Journal(path, ScoreLine).read() for path in sorted(folder.glob(JUDGED.format(rank="*")))]
    last = [lines[-1] for lines in journals if lines]
    return sum(line.tokens for line in last), sum((line.usd for line in last), 0.0)


def budget_of(settings: Judge, folder: Path, rank: int, processes: int) -> Budget:
    """This process's share of the budget, less what its earlier attempts have spent."""
    lines = Journal(folder / JUDGED.format(rank=rank), ScoreLine).read()
    price = settings.price or TokenPrice()
    return Budget(
        None if settings.max_tokens is None else settings.max_tokens // processes,
        None if settings.max_usd is None else settings.max_usd / processes,
        price.usd_per_million_prompt_tokens,
        price.usd_per_million_completion_tokens,
        spent_tokens=lines[-1].tokens if lines else 0,
        spent_usd=lines[-1].usd if lines else 0.0,
    )


class JudgeScores:
    """The judge, opened, with what it has said before. Its answers are not the same twice, so each one, and each
    silence, is in the process's journal before it is used: a resumed training gets the same scores."""

    def __init__(self, session: JudgeSession, settings: Judge, budget: Budget, folder: Path, rank: int) -> None:
        self._session, self._settings, self._budget = session, settings, budget
        self._journal = Journal(folder / JUDGED.format(rank=rank), ScoreLine)
        self._known = {line.key: Finding(line.score, line.reason) for line in self._journal.read()}

    def __call__(self, answers: Sequence[FreshAnswer]) -> list[Finding]:
        """Of each answer at its place; equal ones are asked about once. What has no answer when the batch's deadline
        comes, or past the budget, is none, with the reason."""
        keys = [key_of("judge", self._session.id, answer.prompt, answer.text) for answer in answers]
        new = {key: answer for key, answer in zip(keys, answers, strict=True) if key not in self._known}
        if new:
            names, budget = list(new), self._budget

            def note(place: int, said: Judgement) -> None:
                key, (score, reason) = names[place], (said.score, said.reason)
                tokens, usd = budget.spent_tokens, budget.spent_usd
                self._journal.add(ScoreLine(key=key, score=score, reason=reason, tokens=tokens, usd=usd))
                self._known[key] = Finding(score, reason)

            asked = [JudgeRequest(json.loads(answer.prompt), answer.text) for answer in new.values()]
            self._session.score(asked, note, within_s=self._settings.batch_timeout_s)
        return [self._known[key] for key in keys]
