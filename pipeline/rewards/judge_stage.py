"""Asking the paid judge: every question without an answer yet, from one process, within one budget, into the journal.
The judge is asked where its weight counts and nothing better is known. It is admitted before its first question."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from pipeline.core.estimate import Estimate, share
from pipeline.core.journal import Journal
from pipeline.core.storage import Store
from pipeline.recipe.rewards import Judge, Rewards, TokenPrice
from pipeline.rewards.composite import weights_of
from pipeline.rewards.findings import FindingLine, JudgeSpending, Source, journal, key_of, said, settled, spent
from pipeline.rewards.judge import (
    Admission,
    Budget,
    Endpoint,
    Judgement,
    JudgeReason,
    JudgeRequest,
    JudgeSession,
    PairComparison,
    Preferred,
    open_judge,
)
from pipeline.rewards.judge.answers import JudgeAnswer
from pipeline.rewards.judge.session import admission_name, admit_once
from pipeline.rewards.records import JudgeReport
from pipeline.rewards.samples import COLUMNS, RewardSample, samples, scores_of
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import Lake
from pipeline.traces.records import Window
from pipeline.traces.scope import where

REMEMBERED = 100
"""Prompts that are remembered for comparisons, as a multiple of `order_checks`: of endless traffic, the beginning."""
Answered = dict[str, FindingLine]


class PaidAccount(NamedTuple):
    """What paid answers are booked to, the iteration or a stage of it, and the days whose traces they are about. Each
    account has the whole of a judge's budget."""

    name: str
    days: Sequence[str]

    def budget(
        self, section: Judge, store: Store, sources: Sequence[Source], elsewhere: Sequence[JudgeSpending] = ()
    ) -> Budget:
        """What is left of it: less what earlier attempts have spent, and `elsewhere`."""
        paid = [*(spent(store, self.days, self.name, source) for source in sources), *elsewhere]
        price = section.price or TokenPrice()
        return Budget(
            section.max_tokens,
            section.max_usd,
            price.usd_per_million_prompt_tokens,
            price.usd_per_million_completion_tokens,
            spent_tokens=sum(each.tokens for each in paid),
            spent_usd=sum(each.usd for each in paid),
        )


def judge_traces(
    context: IterationContext,
    lake: Lake,
    window: Window,
    opinions: Path,
    endpoint: Endpoint | None,
    lineage: Collection[str],
) -> JudgeReport:
    """`ask_judge` about the traces of `window`. `opinions`: the folder of the window's settled feedback."""

    def batches(day: str) -> Iterator[list[RewardSample]]:
        of_day = scores_of(opinions / f"{day}.parquet")
        for batch in lake.batches([day], window.snapshot, COLUMNS, where(window.scope)):
            yield samples(batch.to_pylist(), of_day, context.recipe.rewards)

    account = PaidAccount(context.iteration.id, window.days)
    return ask_judge(context, account, endpoint, lineage, ((day, batches(day)) for day in window.days))


def ask_judge(
    context: IterationContext,
    account: PaidAccount,
    endpoint: Endpoint | None,
    lineage: Collection[str],
    days: Iterable[tuple[str, Iterable[Sequence[RewardSample]]]],
) -> JudgeReport:
    """Ask the recipe's judge, if it names one, what is not known yet. `lineage`: digests that it must not have; `days`:
    each day of the account with batches of samples.

    Raises ValueError when a judge is wanted and has no endpoint, or is refused at its admission.
    """
    section = context.recipe.rewards.judge
    if section is None:
        return JudgeReport()
    if endpoint is None:
        raise ValueError("The recipe has rewards.judge, and no endpoint is set. Set JUDGE_URL, or remove the section.")
    store, budget = context.store, account.budget(section, context.store, ("judge", "order", "admission"))
    with open_judge(endpoint, section, budget, context.log) as session:
        stage = _JudgeStage(context, session, budget, lineage, account.name)
        for day, batches in days:
            answered, here = settled(store), settled(store, day)
            elsewhere = {key: line for key, line in answered.items() if key not in here and not line.again}
            stage.new_day(journal(store, day))
            for batch in batches:
                asked = [sample for sample in batch if not sample.unscored]
                stage.ask(asked, answered)
                stage.copy(asked, elsewhere)
        admission = store.read(admission_name(session.id, context.iteration.id), Admission)
        return JudgeReport(
            id=session.id,
            model=section.model,
            attacks=admission.attacks if admission else 0,
            unasked=stage.unasked,
            order=stage.contradictions(),
            asked=stage.asked,
            remembered=stage.remembered,
            tokens=budget.spent_tokens,
            usd=budget.spent_usd,
        )


class _JudgeStage:
    """The judge while it is asked, batch after batch."""

    def __init__(
        self, context: IterationContext, session: JudgeSession, budget: Budget, lineage: Collection[str], account: str
    ) -> None:
        self._store, self._settings, self._section = context.store, context.recipe.rewards, session.settings
        self._session, self._budget, self._lineage, self._account = session, budget, lineage, account
        self._iteration = context.iteration.id
        self._audits = 0
        self._first_of: dict[str, RewardSample] = {}
        self._consistent: dict[str, bool | None] = {}
        self.unasked = "judge_unasked"
        self.asked = self.remembered = 0

    def new_day(self, writer: Journal[FindingLine]) -> None:
        """Answers are compared within a day: the journal of a day is about its own traces."""
        self._writer = writer
        self._first_of.clear()

    def ask(self, batch: Sequence[RewardSample], answered: Answered) -> None:
        """Ask about one batch, and compare what can be compared of it. Adds the answers to `answered`."""
        judged = [sample for sample in batch if wants_judge(sample, self._settings)]
        wanted = {judge_key(self._session.id, sample): sample for sample in (*judged, *self._audited(batch))}
        todo = [(key, each) for key, each in wanted.items() if key not in answered or answered[key].again]
        self.asked += len(todo)
        self.remembered += len(wanted) - len(todo)
        if todo:
            self._admit()

            def note(place: int, judgement: Judgement) -> None:
                key, sample = todo[place]
                if judgement.reason == JudgeReason.BUDGET and not judgement.tokens:
                    self.unasked = str(judgement.reason)  # nothing was asked, so there is nothing to keep
                    return
                answered[key] = sample.line(key, "judge", self._account, **judgement_fields(judgement))
                self._writer.add(answered[key])

            self._session.score([JudgeRequest(s.messages, s.completion, s.reference) for _, s in todo], note)
        self._compare(judged, answered)

    def copy(self, batch: Sequence[RewardSample], elsewhere: Answered) -> None:
        """Keep in this day's journal, at no price, what was answered in another day's."""
        for sample in batch:
            if line := elsewhere.pop(judge_key(self._session.id, sample), None):
                own = {"account": self._account, "trace_id": sample.trace_id, "owner": sample.user_id}
                self._writer.add(structs.replace(line, **own, tokens=0, usd=0.0))

    def contradictions(self) -> Estimate:
        """Share of the pairs on which the judge contradicts itself when their order is swapped."""
        both = [consistent for consistent in self._consistent.values() if consistent is not None]
        return share(sum(not consistent for consistent in both), len(both))

    def _audited(self, batch: Sequence[RewardSample]) -> list[RewardSample]:
        """The first verified completions of the window, up to the recipe's number."""
        rest = self._section.audits - self._audits
        audit_samples = [s for s in batch if audits(s, self._settings) and not wants_judge(s, self._settings)][:rest]
        self._audits += len(audit_samples)
        return audit_samples

    def _admit(self) -> None:
        """Before the first question."""

        def book(tokens: int, usd: float) -> None:
            key, account = self._session.id, self._account
            self._writer.add(FindingLine(key=key, source="admission", account=account, tokens=tokens, usd=usd))

        admit_once(self._store, self._iteration, self._session, self._budget, self._lineage, book)

    def _compare(self, judged: Sequence[RewardSample], answered: Answered) -> None:
        """Both orders of some pairs of answers to one prompt: a judge's noise, seen without anybody's help."""
        pairs = list(self._uncompared(judged, answered))
        if not pairs:
            return
        self._admit()

        def note(place: int, preferred: Preferred) -> None:
            key, first, _ = pairs[place]
            consistent = self._consistent[key] = preferred.consistent
            value = None if consistent is None else float(consistent)
            self._writer.add(first.line(key, "order", self._account, **answer_fields("consistent", value, preferred)))

        asked = [PairComparison(first.messages, first.completion, second.completion) for _, first, second in pairs]
        self._session.compare(asked, note)

    def _uncompared(
        self, judged: Sequence[RewardSample], answered: Mapping[str, FindingLine]
    ) -> Iterator[tuple[str, RewardSample, RewardSample]]:
        """Keys and pairs that are yet to be compared, while there are fewer than wanted."""
        most = self._section.order_checks
        for sample in judged:
            first = self._first_of.get(sample.prompt)
            if first is None:
                if len(self._first_of) < REMEMBERED * most:
                    self._first_of[sample.prompt] = sample
            elif first.completion != sample.completion and len(self._consistent) < most:
                del self._first_of[sample.prompt]
                key = key_of("order", self._session.id, first.prompt, first.completion, sample.completion)
                known = answered.get(key)
                consistent = known.values.get("consistent") if known else None
                self._consistent[key] = None if consistent is None else bool(consistent)
                if known is None or known.again:
                    yield key, first, sample


def answer_fields(component: str, value: float | None, answer: JudgeAnswer) -> dict[str, Any]:
    """What a judge said and took, as fields of a finding."""
    paid = {"tokens": answer.tokens, "usd": answer.usd, "again": not answer.final}
    return {**said(component, value, str(answer.reason)), **paid}


def judgement_fields(judgement: Judgement) -> dict[str, Any]:
    return answer_fields("judge", judgement.score, judgement)


def judge_key(judge_id: str, sample: RewardSample) -> str:
    """Whose answer it is does not count: equal answers to equal prompts are judged once."""
    return key_of("judge", judge_id, sample.prompt, sample.completion, sample.reference or "")


def wants_judge(sample: RewardSample, settings: Rewards) -> bool:
    """Whether the judge's word would count, and the seed's cost rule doesn't say that users have spoken."""
    if settings.judge is None or weights_of(sample.profile, settings).judge == 0:
        return False
    return not (sample.profile == "rated" and settings.judge.skip_rated)


def audits(sample: RewardSample, settings: Rewards) -> bool:
    """Whether the judge may be asked about a verified completion, only to hold its word against the verifier's."""
    return settings.judge is not None and settings.judge.audits > 0 and sample.profile == "verified"
