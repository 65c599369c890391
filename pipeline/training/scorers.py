"""The scorers of a training process: what each says of a completion that no reference can check. An answer without its
end is worth 0; a scorer that could not speak gives no score, never a 0."""

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from pipeline.core.journal import Journal
from pipeline.recipe.rewards import Judge
from pipeline.recipe.training import ScorerName
from pipeline.rewards.custom import CustomScorer, CustomTask
from pipeline.rewards.findings import FindingLine, JudgeSpending, key_of
from pipeline.rewards.judge import Judgement, JudgeRequest, JudgeSession, open_judge
from pipeline.rewards.judge.session import judge_endpoint
from pipeline.rewards.records import Finding
from pipeline.rewards.verifiers import VerifierTask
from pipeline.training.journal import emit
from pipeline.training.plan import TrainingPlan
from pipeline.training.schedule import metadata_by_prompt

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


class FreshScores(NamedTuple):
    """Scorers by name: those that reward, and the second one, which watches."""

    scorers: Mapping[ScorerName, Scorer]
    reward: Sequence[ScorerName]
    second: ScorerName

    def rewarding(self, answers: Sequence[FreshAnswer]) -> list[dict[str, Finding]]:
        """What those that reward say of each answer that has ended, by name."""
        spoken = [(name, self.scorers[name](answers)) for name in self.reward]
        return [{str(name): findings[at] for name, findings in spoken} for at in range(len(answers))]

    def watching(self, answers: Sequence[FreshAnswer]) -> list[Finding]:
        """The second scorer's finding on each; an answer that has not ended is worth 0."""
        ended = [answer for answer in answers if answer.ended]
        spoken = iter(self.scorers[self.second](ended) if ended else ())
        return [next(spoken) if answer.ended else UNENDED for answer in answers]


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
    return lambda answers: model.score([AnsweredChat(json.loads(a.prompt), a.text, a.ended) for a in answers])


def _judge(plan: TrainingPlan, folder: Path, stack: ExitStack) -> Scorer:
    settings, endpoint = plan.rewards.judge, judge_endpoint(os.environ)
    assert settings is not None, "the plan's scorers are those that its rewards have"
    if endpoint is None:
        raise ValueError("The plan's completions are scored by a judge, and JUDGE_URL is not set. Set it, and retry.")
    rank = int(os.environ.get("RANK", "0"))
    mine = share_of(settings, plan.world_size)
    return JudgeScores(stack.enter_context(open_judge(endpoint, mine, spending(folder, rank), emit)), folder, rank)


def _custom(plan: TrainingPlan, folder: Path, stack: ExitStack) -> Scorer:
    assert plan.rewards.custom is not None, "the plan's scorers are those that its rewards have"
    custom = CustomScorer(plan.rewards.custom)
    stack.callback(custom.close)
    custom.start()
    metadata = metadata_by_prompt(plan.data, plan.held_out)

    def score(answers: Sequence[FreshAnswer]) -> list[Finding]:
        tasks = [CustomTask(each.prompt, each.text, None, metadata.get(each.prompt, "{}")) for each in answers]
        return [each.finding for each in custom(tasks)]

    return score


def spending(folder: Path, rank: int | None = None) -> JudgeSpending:
    """Of all attempts of the training in `folder`: of one process, or of all."""
    paths = sorted(folder.glob(JUDGED.format(rank="*" if rank is None else rank)))
    lines = [line for path in paths for line in Journal(path, FindingLine).read()]
    return JudgeSpending(sum(line.tokens for line in lines), sum((line.usd for line in lines), 0.0))


def share_of(settings: Judge, processes: int) -> Judge:
    """The judge with one process's share of the budget."""
    tokens = None if settings.max_tokens is None else settings.max_tokens // processes
    usd = None if settings.max_usd is None else settings.max_usd / processes
    return settings.model_copy(update={"max_tokens": tokens, "max_usd": usd})


class JudgeScores:
    """The judge, opened, with what it has said before. Its answers are not the same twice, so each one, and each
    silence, is in the process's journal before it is used: a resumed training gets the same scores."""

    def __init__(self, session: JudgeSession, folder: Path, rank: int) -> None:
        self._session = session
        self._journal = Journal(folder / JUDGED.format(rank=rank), FindingLine)
        self._known = {line.key: Finding(line.value, line.reason) for line in self._journal.read()}

    def __call__(self, answers: Sequence[FreshAnswer]) -> list[Finding]:
        """Of each answer at its place; equal ones are asked about once. What the judge does not answer in time, or past
        the budget, is none, with the reason."""
        keys = [key_of("judge", self._session.id, answer.prompt, answer.text) for answer in answers]
        new = {key: answer for key, answer in zip(keys, answers, strict=True) if key not in self._known}
        if new:
            names = list(new)

            def note(place: int, judged: Judgement) -> None:
                key, (score, reason) = names[place], (judged.score, judged.reason)
                line = FindingLine(
                    key=key, source="judge", account="training", value=score, reason=reason,
                    tokens=judged.tokens, usd=judged.usd,
                )  # fmt: skip
                self._journal.add(line)
                self._known[key] = Finding(score, reason)

            asked = [JudgeRequest(json.loads(answer.prompt), answer.text) for answer in new.values()]
            self._session.score(asked, note)
        return [self._known[key] for key in keys]
