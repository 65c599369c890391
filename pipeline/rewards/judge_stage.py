"""Asking the paid judges: every question that has no answer yet, from one process, within one budget.

Owns who is asked about which trace (a judge where its weight counts and nothing better is known, the RAG measures where
a trace has contexts), the admission of the judge before its first question, and the journal that each answer is written
to as it comes. Refuses to score: labels are composed from the journal.

The key of an answer in the journal holds all that decides it: who judges by what, and what is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from msgspec import structs

from pipeline import layout
from pipeline.estimate import UNKNOWN, Estimate, share
from pipeline.iteration import Iteration
from pipeline.recipe.rewards import Judge, Rag, Rewards
from pipeline.rewards.composite import weights_of
from pipeline.rewards.findings import FindingJournal, JournalLine, journal, key_of, settled, spent
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
from pipeline.rewards.judge.budget import Budget
from pipeline.rewards.rag import AGAIN, METRICS, RagFinding, Retrieved, open_rag
from pipeline.rewards.samples import COLUMNS, RewardSample, samples, scores_of
from pipeline.storage import Record, Store
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import Lake
from pipeline.traces.records import Window
from pipeline.traces.scope import where

Log = Callable[[str], None]


class Endpoints(NamedTuple):
    """Where the judges are, from the environment; None where nothing is set."""

    judge: Endpoint | None = None
    rag: Endpoint | None = None


class JudgeStageResult(Record):
    """Who was asked, and what came of it. Ids are '' where the recipe names nobody."""

    judge_id: str = ""
    rag_id: str = ""
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
    endpoints: Endpoints,
    lineage: Collection[str],
) -> JudgeStageResult:
    """Ask what is not known yet about the traces of `window`. `lineage`: digests that the judge must not have.

    `opinions`: the folder of the window's settled feedback.

    Raises ValueError when a judge is wanted and has no endpoint, or is refused at its admission.
    """
    store, settings = context.store, context.recipe.rewards
    if settings.judge is None and settings.rag is None:
        return JudgeStageResult()
    with ExitStack() as stack:
        panel = JudgeStage(stack, context, endpoints, lineage, window.days)
        for day in window.days:
            writer = stack.enter_context(journal(store, day))
            answered = settled(store, day)
            day_opinions = scores_of(opinions / f"{day}.parquet")
            panel.new_day()
            for batch in lake.batches([day], window.snapshot, COLUMNS, where(window.scope)):
                asked = samples(batch.to_pylist(), day_opinions, settings)
                panel.ask([sample for sample in asked if not sample.calls_tools], answered, writer)
        return panel.report()


class JudgeStage:
    """The judges while they are asked, batch after batch."""

    def __init__(
        self,
        stack: ExitStack,
        context: IterationContext,
        endpoints: Endpoints,
        lineage: Collection[str],
        days: Sequence[str],
    ) -> None:
        store, iteration, settings, log = context.store, context.iteration, context.recipe.rewards, context.log
        self._store, self._iteration, self._settings, self._lineage = store, iteration, settings, lineage
        self._asked = self._remembered = 0
        self._admission: Admission | None = None
        self._unasked = "judge_unasked"
        self._audits = 0
        self._first_of: dict[str, RewardSample] = {}
        self._orders: dict[str, bool | None] = {}
        self._judge: Any = None
        self._rag: Any = None
        if settings.judge is not None:
            self._judge_budget = _budget(settings.judge, store, days, iteration, ("judge", "order", "admission"))
            where = _needed(endpoints.judge, "rewards.judge", "JUDGE_URL")
            self._judge = stack.enter_context(open_judge(where, settings.judge, self._judge_budget, log))
        if settings.rag is not None:
            self._rag_budget = _budget(settings.rag, store, days, iteration, ("rag",))
            at = _needed(endpoints.rag or endpoints.judge, "rewards.rag", "RAG_URL or JUDGE_URL")
            self._rag = stack.enter_context(open_rag(at, settings.rag, self._rag_budget, log))

    def new_day(self) -> None:
        """Answers are compared within a day: the journal of a day speaks of its own traces."""
        self._first_of.clear()

    def ask(self, batch: Sequence[RewardSample], answered: dict[str, JournalLine], writer: FindingJournal) -> None:
        """Ask about one batch, and compare what can be compared of it."""
        if self._judge is not None:
            judged = [sample for sample in batch if wants_judge(sample, self._settings)]
            asked = [*judged, *self._audited(batch)]
            todo = self._todo({judge_key(self._judge.id, sample): sample for sample in asked}, answered)
            if todo:
                self._admit(writer)
                self._judge.score(
                    [JudgeRequest(sample.messages, sample.completion, sample.reference) for sample in todo.values()],
                    lambda place, judgement: self._note_judgement(list(todo.items())[place], judgement, writer),
                )
            self._compare(judged, answered, writer)
        if self._rag is not None:
            retrieved = [sample for sample in batch if wants_rag(sample, self._settings)]
            todo = self._todo({rag_key(self._rag.id, sample): sample for sample in retrieved}, answered)
            if todo:
                before = {key: answered.get(key) for key in todo}
                self._rag.score(
                    [_retrieved(sample, before[key]) for key, sample in todo.items()],
                    lambda place, finding: self._note_rag(list(todo.items())[place], finding, before, writer),
                )

    def report(self) -> JudgeStageResult:
        both = [consistent for consistent in self._orders.values() if consistent is not None]
        budgets = [b for b in (getattr(self, "_judge_budget", None), getattr(self, "_rag_budget", None)) if b]
        return JudgeStageResult(
            judge_id=self._judge.id if self._judge is not None else "",
            rag_id=self._rag.id if self._rag is not None else "",
            admission=self._admission or self._recorded(),
            unasked=self._unasked,
            order=share(sum(not consistent for consistent in both), len(both)),
            asked=self._asked,
            remembered=self._remembered,
            tokens=sum(budget.spent_tokens for budget in budgets),
            usd=sum(budget.spent_usd for budget in budgets),
        )

    def _audited(self, batch: Sequence[RewardSample]) -> list[RewardSample]:
        """The first verified completions of the window, up to the recipe's number."""
        assert self._settings.judge is not None, "only a judge is audited"
        rest = self._settings.judge.audits - self._audits
        audit_samples = [s for s in batch if audits(s, self._settings) and not wants_judge(s, self._settings)][:rest]
        self._audits += len(audit_samples)
        return audit_samples

    def _todo(self, wanted: dict[str, RewardSample], answered: dict[str, JournalLine]) -> dict[str, RewardSample]:
        todo = {key: sample for key, sample in wanted.items() if key not in answered or answered[key].again}
        self._asked += len(todo)
        self._remembered += len(wanted) - len(todo)
        return todo

    def _admit(self, writer: FindingJournal) -> None:
        """Once an iteration, before the first question. What it cost counts, whether the judge is let in or not."""
        self._admission = self._admission or self._recorded()
        if self._admission is not None:
            return
        before = (self._judge_budget.spent_tokens, self._judge_budget.spent_usd)
        try:
            admission = self._judge.admit(self._lineage)
        finally:
            tokens, usd = self._judge_budget.spent_tokens - before[0], self._judge_budget.spent_usd - before[1]
            place = JournalLine(key=self._judge.id, source="admission", iteration=self._iteration.id, trace_id="")
            writer.add(structs.replace(place, tokens=tokens, usd=usd))
        self._admission = self._store.once(self._admission_name(), Admission, lambda: admission)

    def _recorded(self) -> Admission | None:
        return self._store.read(self._admission_name(), Admission) if self._judge is not None else None

    def _admission_name(self) -> str:
        return f"{layout.JUDGES}/{self._judge.id}/{self._iteration.id}.json"

    def _compare(
        self, judged: Sequence[RewardSample], answered: dict[str, JournalLine], writer: FindingJournal
    ) -> None:
        """Both orders of some pairs of answers to one prompt: a judge's noise, seen without anybody's help."""
        pairs = {key: (first, second) for key, first, second in self._pairs(judged, answered)}
        if not pairs:
            return
        self._admit(writer)

        def note(place: int, preference: Preferred) -> None:
            key = list(pairs)[place]
            self._orders[key] = preference.consistent
            writer.add(order_line(key, self._iteration.id, pairs[key][0], preference))

        asked = [
            PairComparison(first.messages, first.completion, second.completion) for first, second in pairs.values()
        ]
        self._judge.compare(asked, note)

    def _pairs(
        self, judged: Sequence[RewardSample], answered: dict[str, JournalLine]
    ) -> Iterator[tuple[str, RewardSample, RewardSample]]:
        """Pairs that are yet to be compared, while there are fewer than the recipe wants."""
        assert self._settings.judge is not None, "only a judge compares"
        most = self._settings.judge.order_checks
        for sample in judged:
            first = self._first_of.get(sample.prompt)
            if first is None:
                if len(self._first_of) < 100 * most:  # of endless traffic, the beginning
                    self._first_of[sample.prompt] = sample
            elif first.completion != sample.completion and len(self._orders) < most:
                del self._first_of[sample.prompt]
                key = key_of("order", self._judge.id, first.prompt, first.completion, sample.completion)
                self._orders[key] = None
                if key in answered and not answered[key].again:
                    self._orders[key] = consistent(answered[key])
                else:
                    yield key, first, sample

    def _note_judgement(self, item: tuple[str, RewardSample], judgement: Judgement, writer: FindingJournal) -> None:
        key, sample = item
        values = {} if judgement.score is None else {"judge": judgement.score}
        missing = {} if judgement.score is not None else {"judge": str(judgement.reason)}
        scores = PaidScores(values, missing, judgement.tokens, judgement.usd)
        line = line_of(key, "judge", self._iteration.id, sample, scores)
        line.again = not judgement.final
        if (
            judgement.reason == JudgeReason.BUDGET and not judgement.tokens
        ):  # nothing was asked, so there is nothing to keep
            self._unasked = str(judgement.reason)
            return
        writer.add(line)

    def _note_rag(
        self,
        item: tuple[str, RewardSample],
        finding: RagFinding,
        before: dict[str, JournalLine | None],
        writer: FindingJournal,
    ) -> None:
        """The measures that were asked for, beside those that an earlier line of the same key has for good."""
        key, sample = item
        earlier = before[key]
        values = {**(earlier.values if earlier else {}), **finding.values}
        missing = {**(earlier.missing if earlier else {}), **finding.missing}
        missing = {name: reason for name, reason in missing.items() if name not in values}
        scores = PaidScores(values, missing, finding.tokens, finding.usd)
        writer.add(line_of(key, "rag", self._iteration.id, sample, scores))


def _retrieved(sample: RewardSample, before: JournalLine | None) -> Retrieved:
    """What is asked about a sample: of the measures, those that no earlier answer has for good."""
    final = {*before.values, *(name for name, why in before.missing.items() if why not in AGAIN)} if before else set()
    metrics = tuple(name for name in METRICS if name not in final)
    return Retrieved(_question(sample), sample.contexts, sample.completion, sample.reference, metrics)


def _question(sample: RewardSample) -> str:
    """The last thing that the user said."""
    texts = [message["content"] for message in sample.messages if message["role"] == "user"]
    return texts[-1] if texts else ""


def _needed(endpoint: Endpoint | None, section: str, variable: str) -> Endpoint:
    if endpoint is None:
        raise ValueError(f"The recipe has {section}, and no endpoint is set. Set {variable}, or remove the section.")
    return endpoint


def _budget(
    section: Judge | Rag, store: Store, days: Sequence[str], iteration: Iteration, sources: Sequence[str]
) -> Budget:
    """The iteration's budget, less what earlier attempts have spent of it."""
    paid = [spent(store, days, iteration.id, source) for source in sources]
    return Budget(
        section.max_tokens,
        section.max_usd,
        section.usd_per_million_prompt_tokens,
        section.usd_per_million_completion_tokens,
        spent_tokens=sum(each.tokens for each in paid),
        spent_usd=sum(each.usd for each in paid),
    )


def judge_key(judge_id: str, sample: RewardSample) -> str:
    return key_of("judge", judge_id, sample.trace_id, sample.prompt, sample.completion, sample.reference or "")


def rag_key(rag_id: str, sample: RewardSample) -> str:
    return key_of(
        "rag", rag_id, sample.trace_id, sample.prompt, sample.completion, sample.reference or "", *sample.contexts
    )


def wants_judge(sample: RewardSample, settings: Rewards) -> bool:
    """Whether the judge's word would count, and the seed's cost rule doesn't say that users have spoken."""
    if settings.judge is None or weights_of(sample.profile, settings).judge == 0:
        return False
    return not (sample.profile == "rated" and settings.judge.skip_rated)


def wants_rag(sample: RewardSample, settings: Rewards) -> bool:
    weights = weights_of(sample.profile, settings)
    return settings.rag is not None and bool(sample.contexts) and any(getattr(weights, name) > 0 for name in METRICS)


def audits(sample: RewardSample, settings: Rewards) -> bool:
    """Whether the judge may be asked about a verified completion, only to hold its word against the verifier's."""
    return settings.judge is not None and settings.judge.audits > 0 and sample.profile == "verified"


class PaidScores(NamedTuple):
    """What was asked about one row: scores by measure, the reasons of those that are missing, and the price."""

    values: dict[str, float]
    missing: dict[str, str]
    tokens: int
    usd: float


def line_of(key: str, source: Any, iteration: str, sample: RewardSample, scores: PaidScores) -> JournalLine:
    return JournalLine(
        key=key,
        source=source,
        iteration=iteration,
        trace_id=sample.trace_id,
        user_id=sample.user_id,
        **scores._asdict(),
        again=not AGAIN.isdisjoint(scores.missing.values()),
    )


def order_line(key: str, iteration: str, sample: RewardSample, preference: Preferred) -> JournalLine:
    values = {} if preference.consistent is None else {"consistent": float(preference.consistent)}
    missing = {} if preference.consistent is not None else {"consistent": str(preference.reason)}
    scores = PaidScores(values, missing, preference.tokens, preference.usd)
    line = line_of(key, "order", iteration, sample, scores)
    line.again = not preference.final
    return line


def consistent(line: JournalLine) -> bool | None:
    return bool(line.values["consistent"]) if "consistent" in line.values else None
