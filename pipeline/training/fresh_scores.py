"""The scorers of a training process, opened: what each says of a completion that no reference can check.

The reward model is loaded once a process; the judge and the user's function are asked about a whole batch at once. An
answer without its end is worth 0. A scorer that could not speak gives no score, never a 0.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline.recipe.training import ScorerName
from pipeline.rewards.custom import CustomScorer, CustomTask
from pipeline.rewards.judge import open_judge
from pipeline.rewards.judge.session import judge_endpoint
from pipeline.rewards.records import Finding
from pipeline.training.judge_scores import JudgeScores, budget_of
from pipeline.training.plan import TrainingPlan
from pipeline.training.progress import emit
from pipeline.training.schedule import metadata_behind, metadata_by_prompt

SCORING_BATCH = 32
"""Completions that the reward model reads at once."""
UNENDED = Finding(0.0)


class FreshAnswer(NamedTuple):
    """A completion of the policy. `prompt`: chat messages as JSON; `ended`: by its end token, not at its limit."""

    prompt: str
    text: str
    ended: bool


Scorer = Callable[[Sequence[FreshAnswer]], list[Finding]]


class FreshScores:
    """Scorers by name: those that reward, and the one that watches."""

    def __init__(
        self, scorers: Mapping[ScorerName, Scorer], reward: Sequence[ScorerName], watching: ScorerName
    ) -> None:
        self._scorers, self._reward = scorers, reward
        self._second: ScorerName = watching

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
    """The scorers of a plan that has some, until the block ends; nobody is asked yet. `folder`: the training's.

    Raises ValueError for a scorer that cannot be used as the plan has it.
    """
    assert plan.scorers is not None, "only a plan with scorers comes here"
    makers = {"reward_model": _reward_model, "judge": _judge, "custom": _custom}
    wanted: set[ScorerName] = {*plan.scorers.reward, plan.scorers.watching}
    with ExitStack() as stack:
        scorers: dict[ScorerName, Scorer] = {}
        for name in wanted:
            scorers[name] = makers[name](plan, folder, stack)
        yield FreshScores(scorers, plan.scorers.reward, plan.scorers.watching)


def _reward_model(plan: TrainingPlan, folder: Path, stack: ExitStack) -> Scorer:
    from pipeline.rewards.reward_model.network import RewardModel
    from pipeline.rewards.reward_model.scorer import AnsweredChat

    assert plan.scorers is not None and plan.scorers.reward_model is not None, "the plan names its folder"
    model = RewardModel.load(Path(plan.scorers.reward_model.uri))
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
    judge = JudgeScores(session, settings, budget, folder, rank)
    return lambda answers: judge.score([answer.prompt for answer in answers], [answer.text for answer in answers])


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
