"""Asking for the measures of answers to retrieved passages, where a trace has contexts and their weight counts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack

from pipeline.recipe.rewards import Rag, Rewards
from pipeline.rewards.composite import weights_of
from pipeline.rewards.findings import FindingJournal, JournalLine, key_of
from pipeline.rewards.judge import Endpoint
from pipeline.rewards.paid_answers import AnswerCount, PaidAccount, PaidScores, line_of
from pipeline.rewards.rag import AGAIN, METRICS, RagFinding, Retrieved, open_rag
from pipeline.rewards.samples import RewardSample
from pipeline.traces.context import IterationContext


class RetrievalStage:
    """The measures' judge while it is asked, batch after batch."""

    def __init__(
        self,
        stack: ExitStack,
        context: IterationContext,
        section: Rag,
        endpoint: Endpoint,
        account: PaidAccount,
    ) -> None:
        self._account, self._settings = account.name, context.recipe.rewards
        self.budget = account.budget(section, context.store, ("rag",))
        self.count = AnswerCount()
        self._rag = stack.enter_context(open_rag(endpoint, section, self.budget, context.log))

    @property
    def id(self) -> str:
        return self._rag.id

    def ask(self, batch: Sequence[RewardSample], answered: Mapping[str, JournalLine], writer: FindingJournal) -> None:
        wanted = {self._key(sample): sample for sample in batch if wants_retrieval(sample, self._settings)}
        todo = list(self.count.unanswered(wanted, answered).items())

        def note(place: int, finding: RagFinding) -> None:
            """The measures that were asked for, beside those that an earlier line of the same key has for good."""
            key, sample = todo[place]
            earlier = answered.get(key)
            values = {**(earlier.values if earlier else {}), **finding.values}
            missing = {**(earlier.missing if earlier else {}), **finding.missing}
            missing = {name: reason for name, reason in missing.items() if name not in values}
            scores = PaidScores(values, missing, finding.tokens, finding.usd)
            writer.add(line_of(key, "rag", self._account, sample, scores))

        if todo:
            self._rag.score([_retrieved(sample, answered.get(key)) for key, sample in todo], note)

    def _key(self, sample: RewardSample) -> str:
        return retrieval_key(self._rag.id, sample)


def retrieval_key(rag_id: str, sample: RewardSample) -> str:
    return key_of(
        "rag", rag_id, sample.trace_id, sample.prompt, sample.completion, sample.reference or "", *sample.contexts
    )


def wants_retrieval(sample: RewardSample, settings: Rewards) -> bool:
    weights = weights_of(sample.profile, settings)
    return settings.rag is not None and bool(sample.contexts) and any(getattr(weights, name) > 0 for name in METRICS)


def _retrieved(sample: RewardSample, before: JournalLine | None) -> Retrieved:
    """What is asked about a sample: of the measures, those that no earlier answer has for good."""
    final = {*before.values, *(name for name, why in before.missing.items() if why not in AGAIN)} if before else set()
    metrics = tuple(name for name in METRICS if name not in final)
    return Retrieved(_question(sample), sample.contexts, sample.completion, sample.reference, metrics)


def _question(sample: RewardSample) -> str:
    """The last thing that the user said."""
    texts = [message["content"] for message in sample.messages if message["role"] == "user"]
    return texts[-1] if texts else ""
