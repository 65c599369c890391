"""Grades of what production served: by the reference where the application knew one, else by the gate's judge.

Rule. With a reference, the verifier that rewards and evaluation use decides. Without one, a judge's score of 4 or 5 is
a right answer and a lower one a wrong one; one without text or without its end is no answer, and no judge is asked.
What neither can decide is not graded. The gate decided who may judge. What the judge said stands in the journal of
findings under the rollout's name: an answer is judged once, and the judge's budget is that of the whole rollout.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Any, NamedTuple

from pipeline.core.storage import Store, digest_json
from pipeline.recipe import Recipe
from pipeline.recipe.section import Operational, settings
from pipeline.rewards.findings import FindingJournal, JournalLine, journal, key_of, settled
from pipeline.rewards.judge import Endpoint, Judgement, JudgeReason, JudgeRequest, JudgeSession, open_judge
from pipeline.rewards.judge_stage import judgement_line
from pipeline.rewards.paid_answers import PaidAccount
from pipeline.rewards.verifiers import VERSION, grader_of
from pipeline.serving.inference import Messages

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
    user_id: str | None = None
    """Who asked: forgetting that person removes the judgement."""


ASKED_AGAIN = (JudgeReason.UNREACHABLE, JudgeReason.UNAVAILABLE, JudgeReason.TIMEOUT)
"""Why a judge said nothing for now. A budget that is spent stays so."""
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
    recipe: Recipe, judge: Endpoint | None, store: Store, rollout: str, log: Callable[[str], None] = print
) -> Generator[Grading]:
    """What grades answers by this recipe while the block runs. `judge`: where the gate's judge listens; `rollout`:
    whose budget and journal it has."""
    judging, digest = recipe.gate_judge, _digest(recipe)
    with closing(grader_of(recipe.rewards.verifier)) as check:

        def verified(answers: Sequence[ServedAnswer]) -> list[str]:
            return [grade.outcome for grade in check([(each.text, each.reference) for each in answers])]

        if judging is None or judge is None:
            yield Grading(lambda answers: _by_kind(answers, verified, _ungraded), digest)
            return
        budget = PaidAccount(rollout, [rollout]).budget(judging, store, ("judge",))
        with open_judge(judge, judging, budget, log) as session, journal(store, rollout) as writer:
            judged = _Judged(session, settled(store, rollout), writer, rollout)
            yield Grading(lambda answers: _by_kind(answers, verified, judged), digest)


def _by_kind(answers: Sequence[ServedAnswer], verified: AnswerGrader, unreferenced: AnswerGrader) -> list[str]:
    checked = iter(verified([each for each in answers if each.reference]))
    others = iter(unreferenced([each for each in answers if not each.reference]))
    return [next(checked) if each.reference else next(others) for each in answers]


def _ungraded(answers: Sequence[ServedAnswer]) -> list[str]:
    return [UNGRADED] * len(answers)


class _Judged:
    """Outcomes by the judge, who is asked about each answer once."""

    def __init__(
        self, session: JudgeSession, answered: dict[str, JournalLine], writer: FindingJournal, rollout: str
    ) -> None:
        self._session, self._answered, self._writer, self._rollout = session, answered, writer, rollout

    def __call__(self, answers: Sequence[ServedAnswer]) -> list[str]:
        keys = [self._key(each) if _is_given(each) else "" for each in answers]
        given = {key: each for key, each in zip(keys, answers, strict=True) if key}
        todo = [(key, each) for key, each in given.items() if key not in self._answered or self._answered[key].again]

        def note(place: int, judgement: Judgement) -> None:
            key, each = todo[place]
            line = JournalLine(key=key, source="judge", iteration=self._rollout, trace_id="", user_id=each.user_id)
            self._answered[key] = judgement_line(line, judgement)
            if judgement.reason != JudgeReason.BUDGET or judgement.tokens:
                self._writer.add(self._answered[key])

        self._session.score([JudgeRequest(each.messages, each.text) for _, each in todo], note)
        return [_outcome(self._answered[key]) if key else "no_answer" for key in keys]

    def _key(self, each: ServedAnswer) -> str:
        return key_of("judge", self._session.id, json.dumps(each.messages, ensure_ascii=False), each.text, "")


def _outcome(line: JournalLine) -> str:
    if "judge" in line.values:
        return "correct" if line.values["judge"] >= GOOD else "wrong"
    return PENDING if line.missing["judge"] in ASKED_AGAIN else line.missing["judge"]


def _is_given(each: ServedAnswer) -> bool:
    return each.finished and bool(each.text.strip())
