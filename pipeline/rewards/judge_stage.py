"""Asking the paid judges: every question that has no answer yet, from one process, within one budget each.

Owns who is asked about which trace (a judge where its weight counts and nothing better is known), the admission of the
judge before its first question, and the journal that each answer is written to as it comes. Refuses to score: labels
are composed from the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import structs

from pipeline.core import layout
from pipeline.core.estimate import UNKNOWN, Estimate
from pipeline.core.storage import Record, Store
from pipeline.recipe.rewards import Judge, Rewards
from pipeline.rewards.composite import weights_of
from pipeline.rewards.findings import FindingJournal, JournalLine, journal, key_of, settled
from pipeline.rewards.judge import (
    Admission,
    Endpoint,
    Judgement,
    JudgeReason,
    JudgeRequest,
    PairComparison,
    Preferred,
    open_judge,
)
from pipeline.rewards.order_checks import OrderChecks
from pipeline.rewards.paid_answers import AnswerCount, PaidAccount
from pipeline.rewards.samples import COLUMNS, RewardSample, samples, scores_of
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import Lake
from pipeline.traces.records import Window
from pipeline.traces.scope import where


class JudgeStageResult(Record):
    """Who was asked, and what came of it. `judge_id` is '' where the recipe names nobody."""

    judge_id: str = ""
    admission: Admission | None = None
    unasked: str = "judge_unasked"
    """Why the judge said nothing of a completion that it should have been asked about."""
    order: Estimate = UNKNOWN
    asked: int = 0
    remembered: int = 0
    tokens: int = 0
    usd: float = 0.0


def judge_traces(
    context: IterationContext,
    lake: Lake,
    window: Window,
    opinions: Path,
    endpoint: Endpoint | None,
    lineage: Collection[str],
) -> JudgeStageResult:
    """Ask what is not known yet about the traces of `window`. `lineage`: digests that the judge must not have.

    `opinions`: the folder of the window's settled feedback.

    Raises ValueError when a judge is wanted and has no endpoint, or is refused at its admission.
    """
    days = window.days
    with open_panel(context, PaidAccount(context.iteration.id, days), endpoint, lineage) as panel:
        for day in days if panel.judge is not None else ():
            day_opinions = scores_of(opinions / f"{day}.parquet")
            with panel.day(day) as ask:
                for batch in lake.batches([day], window.snapshot, COLUMNS, where(window.scope)):
                    ask(samples(batch.to_pylist(), day_opinions, context.recipe.rewards))
        return panel.result()


@contextmanager
def open_panel(
    context: IterationContext, account: PaidAccount, endpoint: Endpoint | None, lineage: Collection[str]
) -> Generator[JudgePanel]:
    """The paid judge that the recipe names, to be asked about completions to prompts of the account's days.

    Raises ValueError when it has no endpoint.
    """
    section = context.recipe.rewards.judge
    with ExitStack() as stack:
        judge = None
        if section is not None:
            if endpoint is None:
                raise ValueError(
                    "The recipe has rewards.judge, and no endpoint is set. Set JUDGE_URL, or remove the section."
                )
            judge = JudgeStage(stack, context, section, endpoint, lineage, account)
        yield JudgePanel(context.store, judge)


class JudgePanel:
    """The paid judge, if the recipe names one, while it is asked day after day."""

    def __init__(self, store: Store, judge: JudgeStage | None) -> None:
        self._store, self.judge = store, judge

    @contextmanager
    def day(self, day: str) -> Generator[Callable[[Sequence[RewardSample]], None]]:
        """Asks what is not known yet about samples of traces of one day."""
        with journal(self._store, day) as writer:
            judge = self.judge
            answered = settled(self._store) if judge is not None else {}
            here = settled(self._store, day) if judge is not None else {}
            elsewhere = {key: line for key, line in answered.items() if key not in here and not line.again}
            if judge is not None:
                judge.orders.new_day()

            def ask(batch: Sequence[RewardSample]) -> None:
                if judge is not None:
                    asked = [sample for sample in batch if not sample.unscored]
                    judge.ask(asked, answered, writer)
                    judge.copy(asked, elsewhere, writer)

            yield ask

    def result(self) -> JudgeStageResult:
        """Who was asked, and what came of it."""
        judge = self.judge
        if judge is None:
            return JudgeStageResult()
        return JudgeStageResult(
            judge_id=judge.id,
            admission=judge.admission(),
            unasked=judge.unasked,
            order=judge.orders.contradictions(),
            asked=judge.count.asked,
            remembered=judge.count.remembered,
            tokens=judge.budget.spent_tokens,
            usd=judge.budget.spent_usd,
        )


class JudgeStage:
    """The judge while it is asked, batch after batch."""

    def __init__(
        self,
        stack: ExitStack,
        context: IterationContext,
        section: Judge,
        endpoint: Endpoint,
        lineage: Collection[str],
        account: PaidAccount,
    ) -> None:
        self._store, self._iteration, self._settings = context.store, context.iteration, context.recipe.rewards
        self._account = account.name
        self._section, self._lineage = section, lineage
        self._admission: Admission | None = None
        self._audits = 0
        self.unasked = "judge_unasked"
        self.count = AnswerCount()
        self.budget = account.budget(section, context.store, ("judge", "order", "admission"))
        self._judge = stack.enter_context(open_judge(endpoint, section, self.budget, context.log))
        self.orders = OrderChecks(self.id, account.name, section.order_checks)

    @property
    def id(self) -> str:
        return self._judge.id

    def ask(self, batch: Sequence[RewardSample], answered: dict[str, JournalLine], writer: FindingJournal) -> None:
        """Ask about one batch, and compare what can be compared of it. Adds the answers to `answered`."""
        judged = [sample for sample in batch if wants_judge(sample, self._settings)]
        wanted = {judge_key(self.id, sample): sample for sample in (*judged, *self._audited(batch))}
        todo = list(self.count.unanswered(wanted, answered).items())
        if todo:
            self._admit(writer)

            def note(place: int, judgement: Judgement) -> None:
                if line := self._line(*todo[place], judgement):
                    answered[line.key] = line
                    writer.add(line)

            self._judge.score(
                [JudgeRequest(sample.messages, sample.completion, sample.reference) for _, sample in todo], note
            )
        self._compare(judged, answered, writer)

    def copy(self, batch: Sequence[RewardSample], elsewhere: dict[str, JournalLine], writer: FindingJournal) -> None:
        """Keep in this day's journal, at no price, what was answered in another day's."""
        for sample in batch:
            if line := elsewhere.pop(judge_key(self.id, sample), None):
                own = {"iteration": self._account, "trace_id": sample.trace_id, "user_id": sample.user_id}
                writer.add(structs.replace(line, **own, tokens=0, usd=0.0))

    def admission(self) -> Admission | None:
        """The judge's, of this launch or an earlier one; None where it was never asked."""
        return self._admission or self._store.read(self._admission_name(), Admission)

    def _audited(self, batch: Sequence[RewardSample]) -> list[RewardSample]:
        """The first verified completions of the window, up to the recipe's number."""
        rest = self._section.audits - self._audits
        audit_samples = [s for s in batch if audits(s, self._settings) and not wants_judge(s, self._settings)][:rest]
        self._audits += len(audit_samples)
        return audit_samples

    def _admit(self, writer: FindingJournal) -> None:
        """Once an iteration, before the first question. What it cost counts, whether the judge is let in or not."""
        self._admission = self.admission()
        if self._admission is not None:
            return
        before = (self.budget.spent_tokens, self.budget.spent_usd)
        try:
            admission = self._judge.admit(self._lineage)
        finally:
            tokens, usd = self.budget.spent_tokens - before[0], self.budget.spent_usd - before[1]
            place = JournalLine(key=self.id, source="admission", iteration=self._account, trace_id="")
            writer.add(structs.replace(place, tokens=tokens, usd=usd))
        self._admission = self._store.once(self._admission_name(), Admission, lambda: admission)

    def _admission_name(self) -> str:
        return f"{layout.JUDGES}/{self.id}/{self._iteration.id}.json"

    def _compare(
        self, judged: Sequence[RewardSample], answered: Mapping[str, JournalLine], writer: FindingJournal
    ) -> None:
        pairs = list(self.orders.unanswered(judged, answered))
        if not pairs:
            return
        self._admit(writer)

        def note(place: int, preference: Preferred) -> None:
            key, first, _ = pairs[place]
            writer.add(self.orders.note(key, first, preference))

        asked = [PairComparison(first.messages, first.completion, second.completion) for _, first, second in pairs]
        self._judge.compare(asked, note)

    def _line(self, key: str, sample: RewardSample, judgement: Judgement) -> JournalLine | None:
        """None where nothing was asked, so that there is nothing to keep."""
        if judgement.reason == JudgeReason.BUDGET and not judgement.tokens:
            self.unasked = str(judgement.reason)
            return None
        return judgement_line(
            JournalLine(
                key=key, source="judge", iteration=self._account, trace_id=sample.trace_id, user_id=sample.user_id
            ),
            judgement,
        )


def judgement_line(line: JournalLine, judgement: Judgement) -> JournalLine:
    """The line with what the judge said and took."""
    known = judgement.score is not None
    return structs.replace(
        line,
        values={"judge": judgement.score} if known else {},
        missing={} if known else {"judge": str(judgement.reason)},
        tokens=judgement.tokens,
        usd=judgement.usd,
        again=not judgement.final,
    )


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
