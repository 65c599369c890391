"""Asking the paid judge: every question without an answer yet, from one process, within one budget, into the journal.
The judge is asked where its weight counts and nothing better is known. It is admitted before its first question."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from msgspec import structs

from pipeline.recipe.rewards import Rewards
from pipeline.rewards import findings
from pipeline.rewards.composite import weights_of
from pipeline.rewards.findings import FindingLine, journal, key_of, settled
from pipeline.rewards.judge import (
    Endpoint,
    Judgement,
    JudgeReason,
    JudgeRequest,
    JudgeSession,
    open_judge,
)
from pipeline.rewards.judge.session import admit_once
from pipeline.rewards.records import JudgeReport
from pipeline.rewards.samples import COLUMNS, RewardSample, samples, scores_of
from pipeline.traces.context import IterationContext
from pipeline.traces.lake import Lake
from pipeline.traces.records import Window
from pipeline.traces.scope import where


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

    return ask_judge(context, context.iteration.id, endpoint, lineage, ((day, batches(day)) for day in window.days))


def ask_judge(
    context: IterationContext,
    account: str,
    endpoint: Endpoint | None,
    lineage: Collection[str],
    days: Iterable[tuple[str, Iterable[Sequence[RewardSample]]]],
) -> JudgeReport:
    """Ask the recipe's judge, if it names one, what is not known yet. `account`: who pays, and has the whole of the
    budget; `lineage`: digests that the judge must not have; `days`: each day with batches of samples.

    Raises ValueError when a judge is wanted and has no endpoint, or is refused at its admission.
    """
    section = context.recipe.rewards.judge
    if section is None:
        return JudgeReport()
    if endpoint is None:
        raise ValueError("The recipe has rewards.judge, and no endpoint is set. Set JUDGE_URL, or remove the section.")
    spent = findings.spent(context.store, account)
    with open_judge(endpoint, section, spent, context.log) as session:
        stage = _JudgeStage(context, session, lineage, account)
        for day, batches in days:
            stage.new_day(day)
            for batch in batches:
                stage.ask([sample for sample in batch if not sample.unscored])
        return JudgeReport(id=session.id, unasked=stage.unasked, tokens=spent.tokens, usd=spent.usd)


class _JudgeStage:
    """The judge while it is asked, batch after batch."""

    def __init__(
        self, context: IterationContext, session: JudgeSession, lineage: Collection[str], account: str
    ) -> None:
        self._store, self._settings = context.store, context.recipe.rewards
        self._session, self._lineage, self._account = session, lineage, account
        self._iteration = context.iteration.id
        self._everywhere = settled(context.store)
        self._audits = 0
        self.unasked = "judge_unasked"

    def new_day(self, day: str) -> None:
        """The journal of a day is about its own traces."""
        self._writer, self._here = journal(self._store, day), settled(self._store, day)

    def ask(self, batch: Sequence[RewardSample]) -> None:
        judged = [sample for sample in batch if wants_judge(sample, self._settings)]
        wanted = {judge_key(self._session.id, sample): sample for sample in (*judged, *self._audited(batch))}
        todo = [(key, each) for key, each in wanted.items() if not self._knows(key, each)]
        if todo:
            self._admit()

            def note(place: int, judgement: Judgement) -> None:
                key, sample = todo[place]
                if judgement.reason == JudgeReason.BUDGET and not judgement.tokens:
                    self.unasked = str(judgement.reason)  # nothing was asked, so there is nothing to keep
                    return
                self._keep(sample.line(key, "judge", self._account, **judgement_fields(judgement)))

            self._session.score([JudgeRequest(s.messages, s.completion, s.reference) for _, s in todo], note)

    def _knows(self, key: str, sample: RewardSample) -> bool:
        """Whether this day's journal has the answer, or that of another day, from which it is copied at no price."""
        if (line := self._here.get(key)) and not line.again:
            return True
        if (line := self._everywhere.get(key)) and not line.again:
            own = {"account": self._account, "trace_id": sample.trace_id, "owner": sample.user_id}
            self._keep(structs.replace(line, **own, tokens=0, usd=0.0))
            return True
        return False

    def _keep(self, line: FindingLine) -> None:
        self._here[line.key] = self._everywhere[line.key] = line
        self._writer.add(line)

    def _audited(self, batch: Sequence[RewardSample]) -> list[RewardSample]:
        """The first verified completions of the window, up to the recipe's number."""
        rest = self._session.settings.audits - self._audits
        audit_samples = [s for s in batch if audits(s, self._settings) and not wants_judge(s, self._settings)][:rest]
        self._audits += len(audit_samples)
        return audit_samples

    def _admit(self) -> None:
        """Before the first question."""

        def book(tokens: int, usd: float) -> None:
            key, account = self._session.id, self._account
            self._writer.add(FindingLine(key=key, source="admission", account=account, tokens=tokens, usd=usd))

        admit_once(self._store, self._iteration, self._session, self._lineage, book)


def judgement_fields(judgement: Judgement) -> dict[str, Any]:
    """What a judge said and took, as fields of a finding."""
    paid = {"tokens": judgement.tokens, "usd": judgement.usd, "again": not judgement.final}
    return {"value": judgement.score, "reason": str(judgement.reason), **paid}


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
