"""Grades of what production served: by the reference where the application knew one, else by the gate's judge.

Rule. With a reference, the verifier that rewards and evaluation use decides. Without one, a judge's score of 4 or 5 is
a right answer and a lower one a wrong one; one without text or without its end is no answer, and no judge is asked.
What neither can decide is not graded. Refuses to say who may judge: the gate decided that.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from pipeline.recipe import Recipe
from pipeline.rewards.judge import Budget, Endpoint, Judgement, JudgeRequest, JudgeSession, open_judge
from pipeline.rewards.judge.answers import JudgeReason
from pipeline.rewards.verifiers import VERSION, grader_of
from pipeline.section import Operational, settings
from pipeline.serving.inference import Messages
from pipeline.storage import digest_json

GOOD = (4 - 1) / 4
"""A judge's 4, in [0, 1]."""
GRADES = frozenset({"correct", "wrong", "no_answer"})
"""Outcomes that say something about the answer; the others are the reference's or the grader's trouble."""


class ServedAnswer(NamedTuple):
    """An answer that production gave. `reference`: "" where the application knew none."""

    messages: Messages
    text: str
    finished: bool
    reference: str
    feedback: Sequence[Mapping[str, Any]] = ()
    """What was said of it: scores with name, value and source."""


ASKED_AGAIN = (JudgeReason.UNREACHABLE, JudgeReason.UNAVAILABLE, JudgeReason.TIMEOUT, JudgeReason.BUDGET)
"""Why a judge said nothing for now."""
AnswerGrader = Callable[[Sequence[ServedAnswer]], Sequence[str]]
"""Outcome of each answer, in order: one of GRADES, PENDING where it is to be asked for again, or why there is none."""
PENDING, UNGRADED = "", "ungraded"


class Grading(NamedTuple):
    """What grades answers. `digest`: of all that decides what it says."""

    grade: AnswerGrader
    digest: str = ""
    rated_within_s: float | None = None
    """Where only what users say grades: how long it is waited for, and what is ungraded then stays so. None: the
    answers themselves are graded."""


def _digest(recipe: Recipe) -> str:
    judge = recipe.gate_judge
    parts = [settings(recipe.rewards.verifier, Operational), VERSION]
    return digest_json([*parts, None if judge is None else settings(judge, Operational)])


@contextmanager
def answer_grader(
    recipe: Recipe,
    judge: Endpoint | None,
    log: Callable[[str], None] = print,
    pay: Callable[[int, float], None] = lambda tokens, usd: None,
) -> Generator[Grading]:
    """What grades answers by this recipe while the block runs. `judge`: where the gate's judge listens; `pay`: is told
    the tokens and the dollars of each time that it was asked."""
    judging, digest = recipe.gate_judge, _digest(recipe)
    with closing(grader_of(recipe.rewards.verifier)) as check:

        def verified(answers: Sequence[ServedAnswer]) -> list[str]:
            return [grade.outcome for grade in check([(each.text, each.reference) for each in answers])]

        if judging is None or judge is None:
            yield Grading(lambda answers: _by_kind(answers, verified, _ungraded), digest)
            return
        prices = judging.usd_per_million_prompt_tokens, judging.usd_per_million_completion_tokens
        budget = Budget(judging.max_tokens, judging.max_usd, *prices)
        with open_judge(judge, judging, budget, log) as session:

            def judged(answers: Sequence[ServedAnswer]) -> list[str]:
                tokens, usd = budget.spent_tokens, budget.spent_usd
                try:
                    return _judged(session, answers)
                finally:
                    if budget.spent_tokens > tokens:
                        pay(budget.spent_tokens - tokens, budget.spent_usd - usd)

            yield Grading(lambda answers: _by_kind(answers, verified, judged), digest)


def _by_kind(answers: Sequence[ServedAnswer], verified: AnswerGrader, unreferenced: AnswerGrader) -> list[str]:
    checked = iter(verified([each for each in answers if each.reference]))
    others = iter(unreferenced([each for each in answers if not each.reference]))
    return [next(checked) if each.reference else next(others) for each in answers]


def _ungraded(answers: Sequence[ServedAnswer]) -> list[str]:
    return [UNGRADED] * len(answers)


def _judged(session: JudgeSession, answers: Sequence[ServedAnswer]) -> list[str]:
    given = [each for each in answers if _is_given(each)]
    judgements = iter(session.score([JudgeRequest(each.messages, each.text) for each in given]))
    return [_outcome(next(judgements)) if _is_given(each) else "no_answer" for each in answers]


def _outcome(judgement: Judgement) -> str:
    if judgement.score is None:
        return PENDING if judgement.reason in ASKED_AGAIN else judgement.reason
    return "correct" if judgement.score >= GOOD else "wrong"


def _is_given(each: ServedAnswer) -> bool:
    return each.finished and bool(each.text.strip())
