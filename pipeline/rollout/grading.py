"""Grades of what production served: by the reference where there is one, else by the gate's judge, who is asked once
an answer, else by what users say; and rewards of traces, composed as labels are without a judge."""

import json
from collections import defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from statistics import fmean
from typing import Any, NamedTuple

from pipeline.core.journal import Journal
from pipeline.core.storage import Store, digest_json
from pipeline.recipe import Recipe
from pipeline.recipe.rewards import Feedback, Rewards
from pipeline.recipe.section import Operational, settings
from pipeline.rewards.composite import compose, verified
from pipeline.rewards.findings import FindingLine, journal, key_of, settled, spent
from pipeline.rewards.judge import Endpoint, Judgement, JudgeReason, JudgeRequest, JudgeSession, open_judge
from pipeline.rewards.judge_stage import judgement_fields
from pipeline.rewards.records import DOES_NOT_APPLY, Finding
from pipeline.rewards.rules import measure
from pipeline.rewards.samples import UNKNOWN, RewardSample
from pipeline.rewards.verifiers import VERSION, Grade, Grader, Outcome
from pipeline.serving.inference import Messages
from pipeline.traces.scores import RETRY

GOOD = (4 - 1) / 4
"""A judge's 4, in [0, 1]."""
GRADES = frozenset({"correct", "wrong", "no_answer"})
"""Outcomes that say something about the answer; the others are the reference's or the grader's trouble."""


class ServedAnswer(NamedTuple):
    """An answer that production gave. `reference`: "" where the application knew none; `feedback`: scores with name,
    value and source; `user_id`: who asked, since forgetting that person removes the judgement."""

    messages: Messages
    text: str
    finished: bool
    reference: str
    feedback: Sequence[Mapping[str, Any]] = ()
    user_id: str | None = None


ASKED_AGAIN = (JudgeReason.UNREACHABLE, JudgeReason.UNAVAILABLE, JudgeReason.TIMEOUT)
"""Why a judge said nothing for now. A budget that is spent stays so."""
AnswerGrader = Callable[[Sequence[ServedAnswer]], Sequence[str]]
"""Outcome of each answer, in order: one of GRADES, PENDING where it is to be asked for again, or why there is none."""
PENDING, UNGRADED = "", "ungraded"


class Grading(NamedTuple):
    """What grades answers."""

    grade: AnswerGrader
    rated_within_s: float | None = None
    """Where only what users say grades: how long it is waited for, and what is ungraded then stays so. None: the
    answers themselves are graded."""


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
            checked = iter(check([(each.text, each.reference) for each in answers if each.reference]))
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
    if "judge" in line.values:
        return "correct" if line.values["judge"] >= GOOD else "wrong"
    return PENDING if line.missing["judge"] in ASKED_AGAIN else line.missing["judge"]


NO_SIGNAL = "no_signal"
"""Reason of an answer that nothing here can grade."""

Label = Callable[[Sequence[RewardSample]], Sequence[Finding]]
"""The reward of each answer, in order, or the reason why there is none (yet)."""


def label_digest_of(rewards: Rewards) -> str:
    return digest_json([settings(rewards, Operational), VERSION])


def composed(settings: Rewards) -> Label:
    """Grades by the recipe's rewards. An answer without a reference and without feedback has no signal: rules alone
    say nothing of its quality."""

    def label(held: Sequence[RewardSample]) -> list[Finding]:
        checked = [sample for sample in held if sample.reference and not sample.unscored]
        known = [sample for sample in checked if sample.kind != UNKNOWN]
        with closing(Grader(settings.verifier)) as check:
            grades = iter(check([sample.task for sample in known]) if known else [])
        of = {id(sample): next(grades) if sample.kind != UNKNOWN else Grade(Outcome.error, "") for sample in checked}
        return [_reward(sample, of.get(id(sample)), settings) for sample in held]

    return label


def _reward(sample: RewardSample, grade: Grade | None, settings: Rewards) -> Finding:
    if sample.unscored:
        return Finding(None, NO_SIGNAL)
    findings = {"feedback": sample.feedback}
    if grade is not None:
        findings |= verified(sample.task, grade, settings, sample.latency_s)
    elif sample.feedback.value is None:
        return Finding(None, NO_SIGNAL)
    else:
        findings |= measure(sample.completion, None, sample.latency_s, settings.rules)
    reward = compose(findings, sample.profile, settings)
    return Finding(None, reward.reason) if reward.final_reward is None else Finding(reward.final_reward)


def rated(feedback: Sequence[Mapping[str, Any]], settings: Feedback) -> Finding:
    """What users said of an answer, as the posterior mean of their scores: those of one name are one answer."""
    answers = user_scores(feedback)
    if not answers:
        return DOES_NOT_APPLY
    strength = settings.prior_strength
    return Finding((sum(answers) + 0.5 * strength) / (len(answers) + strength))


def user_scores(feedback: Sequence[Mapping[str, Any]]) -> list[float]:
    """What users said of an answer, a mean for each name of a score; questions asked again are none."""
    by_name: dict[str, list[float]] = defaultdict(list)
    for score in feedback:
        value = score["value"]
        if value is not None and score["name"] != RETRY:
            by_name[score["name"]].append(value)
    return [fmean(values) for values in by_name.values()]


LIKED = 0.5
"""Mean of what was said of an answer, in [0, 1], above which it is a right one."""
UNRATED = Finding(None, "unrated")


def by_thumbs(rated_within_s: float) -> Grading:
    """Of a gateway's answers, each with what was said of it."""

    def grade(answers: Sequence[ServedAnswer]) -> list[str]:
        said = [user_scores(each.feedback) for each in answers]
        return [UNGRADED if not scores else "correct" if fmean(scores) > LIKED else "wrong" for scores in said]

    return Grading(grade, rated_within_s)


def thumbs(held: Sequence[RewardSample]) -> list[Finding]:
    """Of production's traces: a label in place of the composed reward. The prior moves no mean over 0.5."""
    return [UNRATED if each.feedback.value is None else Finding(float(each.feedback.value > LIKED)) for each in held]
