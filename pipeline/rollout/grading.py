"""Grades of what production served: by the reference where there is one, else by the gate's judge, who is asked once
an answer, else by what users say."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from statistics import fmean
from typing import Any, Literal, NamedTuple

from pipeline.core.journal import Journal
from pipeline.core.storage import Store, digest_json
from pipeline.recipe import Recipe
from pipeline.recipe.rewards import Rewards, VerifierKind
from pipeline.recipe.section import Operational, settings
from pipeline.rewards.feedback import user_scores
from pipeline.rewards.findings import FindingLine, journal, key_of, settled, spent
from pipeline.rewards.judge import Endpoint, Judgement, JudgeReason, JudgeRequest, JudgeSession, open_judge
from pipeline.rewards.judge_stage import judgement_fields
from pipeline.rewards.verifiers import VERSION, Grader, VerifierTask
from pipeline.rollout.evidence import complete_until
from pipeline.rollout.router import Arm
from pipeline.serving.inference import Messages

GOOD = (4 - 1) / 4
"""A judge's 4, in [0, 1]."""
GRADES = frozenset({"correct", "wrong", "no_answer"})
"""Outcomes that say something about the answer; the others are the reference's or the grader's trouble."""


class ServedAnswer(NamedTuple):
    """An answer that production gave. `reference`: "" where the application knew none; `feedback`: scores with name
    and value; `user_id`: who asked, since forgetting that person removes the judgement; `kind`: how the reference is
    compared, "" for the recipe's."""

    messages: Messages
    text: str
    finished: bool
    reference: str
    feedback: Sequence[Mapping[str, Any]] = ()
    user_id: str | None = None
    kind: VerifierKind | Literal[""] = ""
    at: float = 0.0
    """When it was given, in seconds since 1970, and below, to whom."""
    arm: Arm = "champion"
    unit: str = ""


ASKED_AGAIN = (JudgeReason.UNREACHABLE, JudgeReason.UNAVAILABLE, JudgeReason.TIMEOUT)
"""Why a judge said nothing for now. A budget that is spent stays so."""
AnswerGrader = Callable[[Sequence[ServedAnswer]], Sequence[str]]
"""Outcome of each answer, in order: one of GRADES, PENDING where it is to be asked for again, or why there is none."""
PENDING, UNGRADED = "", "ungraded"


Units = dict[Arm, defaultdict[str, Counter[str]]]
"""By arm and unit, the fields of `UnitCounts`."""


class Grading(NamedTuple):
    """What grades answers."""

    grade: AnswerGrader
    rated_within_s: float | None = None
    """Where only what users say grades: how long it is waited for, and what is ungraded then stays so. None: the
    answers themselves are graded."""

    def counted(self, answers: Sequence[ServedAnswer], until: float, now: float) -> tuple[Units, float]:
        """What is graded of each unit, and until when the grades of both arms are complete. `answers`: in the order of
        time."""
        graded = list(zip(answers, self.grade(answers) if answers else (), strict=True))
        if self.rated_within_s is not None:  # who will still say something is unknown
            until = min(until, now - self.rated_within_s)
        else:
            graded = [(each, outcome) for each, outcome in graded if outcome in (*GRADES, PENDING)]
            arms: tuple[Arm, ...] = ("champion", "canary")
            by_arm = [[(each.at, outcome != PENDING) for each, outcome in graded if each.arm == arm] for arm in arms]
            until = min(complete_until(each, until) for each in by_arm)
        units: Units = {"champion": defaultdict(Counter), "canary": defaultdict(Counter)}
        for each, outcome in graded:
            if each.at <= until:
                is_graded, correct = outcome in GRADES, outcome == "correct"
                units[each.arm][each.unit].update(graded=is_graded, correct=correct, ungraded=not is_graded)
        return units, until


@contextmanager
def answer_grader(
    recipe: Recipe, judge: Endpoint | None, store: Store, rollout: str, log: Callable[[str], None] = print
) -> Generator[Grading]:
    """What grades answers by this recipe while the block runs. `judge`: where the gate's judge listens; `rollout`:
    whose budget and journal it has."""
    judging = recipe.gate_judge
    with ExitStack() as stack:
        check = stack.enter_context(closing(Grader(recipe.rewards.verifier)))
        judged: AnswerGrader = lambda answers: [UNGRADED] * len(answers)  # noqa: E731 (no judge)
        if judging is not None and judge is not None:
            session = stack.enter_context(open_judge(judge, judging, spent(store, rollout, rollout), log))
            judged = partial(_judged, session, settled(store, rollout), journal(store, rollout), rollout)

        def grade(answers: Sequence[ServedAnswer]) -> list[str]:
            kind = recipe.rewards.verifier.kind
            tasks = [VerifierTask(each.text, each.reference, each.kind or kind) for each in answers if each.reference]
            checked = iter(check(tasks))
            others = iter(judged([each for each in answers if not each.reference]))
            return [next(checked).outcome if each.reference else next(others) for each in answers]

        yield Grading(grade)


def _judged(
    session: JudgeSession,
    answered: dict[str, FindingLine],
    writer: Journal[FindingLine],
    rollout: str,
    answers: Sequence[ServedAnswer],
) -> list[str]:
    """Outcomes by the judge, who is asked about each answer once."""
    keys = [
        key_of("judge", session.id, json.dumps(each.messages, ensure_ascii=False), each.text, "")
        if each.finished and each.text.strip()
        else ""
        for each in answers
    ]
    given = {key: each for key, each in zip(keys, answers, strict=True) if key}
    todo = [(key, each) for key, each in given.items() if key not in answered or answered[key].again]

    def note(place: int, judgement: Judgement) -> None:
        key, each = todo[place]
        answered[key] = FindingLine(
            key=key, source="judge", account=rollout, owner=each.user_id, **judgement_fields(judgement)
        )
        if judgement.reason != JudgeReason.BUDGET or judgement.tokens:
            writer.add(answered[key])

    session.score([JudgeRequest(each.messages, each.text) for _, each in todo], note)
    return [_outcome(answered[key]) if key else "no_answer" for key in keys]


def _outcome(line: FindingLine) -> str:
    if line.value is not None:
        return "correct" if line.value >= GOOD else "wrong"
    return PENDING if line.reason in ASKED_AGAIN else line.reason


def label_digest_of(rewards: Rewards) -> str:
    return digest_json([settings(rewards, Operational), VERSION])


LIKED = 0.5
"""Mean of what was said of an answer, in [0, 1], above which it is a right one."""


def by_thumbs(rated_within_s: float) -> Grading:
    """Of a gateway's answers, each with what was said of it."""

    def grade(answers: Sequence[ServedAnswer]) -> list[str]:
        said = [user_scores(each.feedback) for each in answers]
        return [UNGRADED if not scores else "correct" if fmean(scores) > LIKED else "wrong" for scores in said]

    return Grading(grade, rated_within_s)
