"""Asking an admitted judge which of two models' answers is better: the judged suites of an evaluation. A judge that is
refused, or whose budget ends, is a problem in the evidence: INCONCLUSIVE."""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

import msgspec

from evals.bundle import SuiteEvidence
from evals.records import EvalPlan, EvalSample
from evals.suites import Item, Suite
from evals.suites.lines import drawn
from evals.win_rate import MAX_UNJUDGED_SHARE, JudgedEvidence, JudgedPair, JudgeIdentity, pairing_problems
from pipeline.core import layout
from pipeline.core.journal import Journal, JournalEntry, forget, latest, open_journal, read
from pipeline.core.removal import Removal
from pipeline.core.storage import Store, digest_json
from pipeline.recipe.rewards import Judge
from pipeline.recipe.suites import JudgedSuite
from pipeline.rewards import findings
from pipeline.rewards.findings import JudgeSpending
from pipeline.rewards.judge import (
    Endpoint,
    JudgeAway,
    JudgeReason,
    JudgeRefused,
    JudgeSession,
    PairComparison,
    Preferred,
    open_judge,
)
from pipeline.rewards.judge.admission import AWAY, refuse_lineage
from pipeline.rewards.judge.session import admit_once, judge_id
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.inference import Messages

Log = Callable[[str], None]
OUTCOMES = {"second": 1.0, "first": 0.0, "tie": 0.5}
"""Of the candidate, which is the second of each pair."""
NO_ANSWER = "no answer of a model"


class JudgementLine(JournalEntry):
    """A pair in both orders (of the candidate: 1 better, 0 worse, 0.5 neither), or the reason why there is no
    preference. Its owner is the item; without one the line holds what an admission, or a pair that was erased, cost."""

    iteration: str
    candidate_first: float | None = None
    champion_first: float | None = None
    reason: str = ""
    tokens: int = 0
    usd: float = 0.0


def pair_key(judge: str, item: str, messages: Messages, champion: str, candidate: str) -> str:
    """Identity of a judgement: who judges (by id) which two texts. Which models wrote them is no part of it; the item
    is, whose id holds something random where it is a person's."""
    return digest_json([judge, item, messages, champion, candidate])


def spent_on(store: Store, iteration: str) -> JudgeSpending:
    """What all judges took for this iteration's pairs. Raises ValueError for a file that holds other things."""
    paths = sorted(store.path(layout.JUDGEMENTS).glob("*/*.jsonl"))
    return _spent([line for path in paths for line in read(path, JudgementLine)], iteration)


def _spent(lines: list[JudgementLine], iteration: str) -> JudgeSpending:
    paid = [line for line in lines if line.iteration == iteration]
    return JudgeSpending(tokens=sum(line.tokens for line in paid), usd=sum(line.usd for line in paid))


def removals(store: Store, items: Collection[str]) -> Iterator[Removal]:
    """The judgements of these items' pairs: of each line what it cost stays."""
    return forget(store, store.path(layout.JUDGEMENTS).glob("*/*.jsonl"), items, _cost)


def _cost(text: bytes) -> bytes:
    line = msgspec.json.decode(text, type=JudgementLine)
    left = JudgementLine(key="", iteration=line.iteration, tokens=line.tokens, usd=line.usd)
    return msgspec.json.encode(left) + b"\n"


class _AnswerPair(NamedTuple):
    """The first answers of both models to one item."""

    item: Item
    champion: EvalSample
    candidate: EvalSample
    key: str
    comparison: PairComparison

    @property
    def lost(self) -> bool:
        """Whether the engine answered one of them with an error."""
        return any(each.outcome is Outcome.error and not each.text for each in (self.champion, self.candidate))

    def judged(self, line: JudgementLine | None, reason: str = "") -> JudgedPair:
        return JudgedPair(
            item=self.item.id,
            cluster=self.item.cluster,
            candidate_first=line.candidate_first if line else None,
            champion_first=line.champion_first if line else None,
            champion_length=self.champion.tokens,
            candidate_length=self.candidate.tokens,
            reason=line.reason if line else reason,
        )


def judge_suites(
    store: Store, plan: EvalPlan, endpoint: Endpoint | None, gathered: Sequence[SuiteEvidence], log: Log
) -> tuple[JudgedEvidence, ...]:
    """The evidence of each judged suite of the plan, over the answers that were `gathered`.

    Raises ValueError, saying what to do, where a suite that gates needs a judge that has no endpoint or does not answer
    now: nothing is published then, and what was judged is not asked again.
    """
    over, judge = {each.suite.name: each for each in gathered}, plan.judge
    wanted = [each for each in plan.section.judged if each.over in over]
    if not wanted:
        return ()
    try:
        if judge is None:
            raise JudgeRefused("The recipe has no judge. Name one in rewards.judge, and begin a new iteration.")
        if endpoint is None:
            raise JudgeAway("The judge has no endpoint. Set JUDGE_URL, and evaluate again.")
        refuse_lineage(judge, plan.models())
        with open_journal(store.path(layout.JUDGEMENTS, judge_id(judge), "pairs.jsonl"), JudgementLine) as journal:
            asking = _Asking(store, plan, judge, endpoint, journal, log)
            return tuple(asking.evidence(each, over[each.over]) for each in wanted)
    except JudgeRefused as refusal:
        if isinstance(refusal, JudgeAway) and any(each.role != "report" for each in wanted):
            raise
        identity = judge and JudgeIdentity(model=judge.model, digest=judge.digest, id=judge_id(judge))
        return tuple(JudgedEvidence(suite=each.name, judge=identity, problems=(str(refusal),)) for each in wanted)


def generation(judged: JudgedSuite, over: Suite, judge: Judge | None) -> Suite:
    """What the ledger counts as the items of a judged suite: those of the other, and the judge. Another judge is
    another chance."""
    by = judge_id(judge) if judge else ""
    return Suite(name=judged.name, items=(), generation=digest_json([judged.name, over.identity(), by]))


class _Asking:
    """A judge while its suites are judged. It is opened, and admitted, before the first pair that is not known."""

    def __init__(
        self, store: Store, plan: EvalPlan, judge: Judge, endpoint: Endpoint, journal: Journal[JudgementLine], log: Log
    ) -> None:
        self._store, self._plan, self._judge, self._endpoint = store, plan, judge, endpoint
        self._journal, self._log, lines = journal, log, journal.read()
        self._judged = {key: line for key, line in latest(lines).items() if line.owner and not line.again}
        self._identity = JudgeIdentity(model=judge.model, digest=judge.digest, id=judge_id(judge))
        iteration = plan.iteration
        labels, own = findings.spent(store, iteration.id), _spent(lines, iteration.id)
        self._spent = JudgeSpending(labels.tokens + own.tokens, labels.usd + own.usd)

    def evidence(self, section: JudgedSuite, over: SuiteEvidence) -> JudgedEvidence:
        nothing = JudgedEvidence(suite=section.name, judge=self._identity)
        seed = over.arms[0].protocol.answers.seed
        if pairing_problems(over.suite, over.arms, self._plan.section, seed):
            return nothing
        try:
            items = drawn(over.suite.items, section.items, self._plan.section.seed)
        except ValueError as error:
            return nothing.model_copy(update={"problems": (f"{over.suite.name}: {error}",)})
        pairs = self._pairs(items, over)
        unjudged = self._ask(section, pairs)
        problems: tuple[str, ...] = ()
        if over_budget := sum(reason == JudgeReason.BUDGET for reason in unjudged.values()):
            problems = (
                f"the judge's budget ended before {over_budget} of {len(pairs)} pairs were judged: raise "
                "rewards.judge.max_tokens or max_usd for the next iteration, or judge fewer items",
            )
        judged = tuple(
            each.judged(None if each.lost else self._judged.get(each.key), self._reason(each, unjudged))
            for each in pairs
        )
        return nothing.model_copy(update={"problems": problems, "pairs": judged})

    def _pairs(self, items: Sequence[Item], over: SuiteEvidence) -> list[_AnswerPair]:
        champion, candidate = ({each.id: each.samples[0] for each in arm.results} for arm in over.arms)
        pairs: list[_AnswerPair] = []
        for item in items:
            before, after, messages = champion[item.id], candidate[item.id], over.suite.messages(item)
            key = pair_key(self._identity.id, item.id, messages, before.text, after.text)
            pairs.append(_AnswerPair(item, before, after, key, PairComparison(messages, before.text, after.text)))
        return pairs

    def _ask(self, section: JudgedSuite, pairs: Sequence[_AnswerPair]) -> dict[str, str]:
        """Judge what is not known. Returns why the judge did not answer, by key."""
        wanted = [each for each in pairs if not each.lost and each.champion.text != each.candidate.text]
        todo = list({each.key: each for each in wanted if each.key not in self._judged}.values())
        equal = len(pairs) - len(wanted)
        self._log(
            f"evaluation: {section.name}: {len(wanted) - len(todo)} of {len(wanted)} pairs are judged, {len(todo)} "
            f"asked; {equal} need no judge"
        )
        if not todo:
            return {}
        unjudged: dict[str, str] = {}

        def keep(place: int, preferred: Preferred) -> None:
            pair = todo[place]
            if not preferred.final:
                unjudged[pair.key] = preferred.reason
            if preferred.final or preferred.tokens:
                self._add(pair, preferred)

        with open_judge(self._endpoint, self._judge, self._spent, self._log) as session:
            self._admit(session)
            session.compare([each.comparison for each in todo], keep)
        away = Counter(reason for reason in unjudged.values() if reason in AWAY)
        if away.total() > MAX_UNJUDGED_SHARE * len(pairs):
            raise JudgeAway(
                f"The judge {self._judge.model!r} did not answer about {away.total()} of {len(pairs)} pairs of "
                f"{section.name} ({', '.join(f'{reason} {n}' for reason, n in away.most_common())}). Evaluate again "
                "when its endpoint answers: what was judged is not asked again."
            )
        return unjudged

    def _add(self, pair: _AnswerPair, preferred: Preferred) -> None:
        first, second = (OUTCOMES[each] for each in preferred.orders) if preferred.orders else (None, None)
        line = JudgementLine(
            key=pair.key,
            iteration=self._plan.iteration.id,
            owner=pair.item.id,
            champion_first=first,
            candidate_first=second,
            reason=preferred.reason,
            again=not preferred.final,
            tokens=preferred.tokens,
            usd=preferred.usd,
        )
        self._journal.add(line)
        if preferred.final:
            self._judged[pair.key] = line

    def _admit(self, session: JudgeSession) -> None:
        """Unless the labels have done it."""
        iteration = self._plan.iteration.id

        def book(tokens: int, usd: float) -> None:
            self._journal.add(JudgementLine(key=session.id, iteration=iteration, tokens=tokens, usd=usd))

        admit_once(self._store, iteration, session, self._plan.models(), book)

    @staticmethod
    def _reason(pair: _AnswerPair, unjudged: dict[str, str]) -> str:
        if pair.lost:
            return NO_ANSWER
        return "" if pair.champion.text == pair.candidate.text else unjudged.get(pair.key, "")
