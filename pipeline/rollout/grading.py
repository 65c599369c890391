"""Grades of what production served: by the reference where there is one, else by the gate's judge, who is asked once
an answer, else by what users say. And whether the champion's answers became worse, as labels of production tell: each
signal is tested as harm is, at half of alpha. A proven fall has no cause yet."""

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from statistics import fmean
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from pipeline.core.journal import Journal
from pipeline.core.storage import Store, digest_json
from pipeline.recipe import Recipe, Rollout
from pipeline.recipe.rewards import Rewards, VerifierKind
from pipeline.recipe.section import Operational, settings
from pipeline.rewards.feedback import user_scores
from pipeline.rewards.findings import FindingLine, journal, key_of, settled, spent
from pipeline.rewards.judge import Endpoint, Judgement, JudgeReason, JudgeRequest, JudgeSession, open_judge
from pipeline.rewards.judge_stage import judgement_fields
from pipeline.rewards.verifiers import VERSION, Grader, VerifierTask
from pipeline.rollout.evidence import complete_until
from pipeline.rollout.router import Arm
from pipeline.rollout.rules import QUALITY_SCALE
from pipeline.rollout.shares import Ratio, enough, proven, ratio, variance
from pipeline.serving.inference import Messages
from pipeline.traces.arrow import pc

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


SIGNAL_COLUMNS = ("user_id", "feedback", "judge", "judge_id")


class SignalChange(NamedTuple):
    """One share of good answers, before and since; `fell`: by more than the recipe allows, proven."""

    signal: str
    before: Ratio
    since: Ratio
    fell: bool

    def line(self) -> str:
        if not (self.before.trials and self.since.trials):
            return f"{self.signal}: {self.before.trials:,.0f} answers before, {self.since.trials:,.0f} since"
        return (
            f"{self.signal}: {self.before.share:.1%} good of {self.before.trials:,.0f} before, "
            f"{self.since.share:.1%} of {self.since.trials:,.0f} since"
        )


def changes(before: pa.Table, since: pa.Table, rule: Rollout, least: int) -> list[SignalChange]:
    """Thumbs, then judge. Tables with SIGNAL_COLUMNS, one row an answer. `least`: scored answers below which nothing is
    tested, on either side."""
    judges = Counter(since["judge_id"].drop_null().to_pylist()).most_common(1)
    one = judges[0][0] if judges else ""  # two judges are two scales
    tables = (before, since)
    thumbs = [_by_user(each, pc.greater(each["feedback"], LIKED)) for each in tables]
    own = [each.filter(pc.equal(each["judge_id"], one)) for each in tables]
    judged = [_by_user(each, pc.greater_equal(each["judge"], GOOD)) for each in own]
    pairs = (("thumbs", *thumbs), ("judge", *judged))
    return [SignalChange(name, old, new, _fell(old, new, rule, least)) for name, old, new in pairs]


def _fell(before: Ratio, since: Ratio, rule: Rollout, least: int) -> bool:
    if not (enough(before, "user", least) and enough(since, "user", least)):
        return False
    spread = variance(before, "user") + variance(since, "user")
    return proven(before.share - since.share - rule.max_quality_drop, spread, rule.alpha / 2, QUALITY_SCALE)


def _by_user(labels: pa.Table, good: Any) -> Ratio:
    rows = pa.table({"user": labels["user_id"], "good": good}).filter(pc.is_valid(good))
    sums = rows.group_by("user").aggregate([("good", "sum"), ("good", "count")])
    return ratio(*(sums[name].to_numpy().astype(np.float64) for name in ("good_sum", "good_count")))
