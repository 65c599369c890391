"""What one model answered to one suite: every graded sample, and its counts. A check that timed out, failed or had no
usable reference is an outcome of its own, never a score of 0."""

from typing import NamedTuple

from pipeline.core.storage import ModelRef, Record, digest_json
from pipeline.rewards.verifiers import Outcome
from pipeline.serving.journal import AnswerProtocol


class Protocol(Record):
    """Everything but the weights that decides an outcome. Runs are comparable when their digests are equal."""

    suite: str
    suite_digest: str
    samples: int
    verifier: str
    answers: AnswerProtocol

    def digest(self) -> str:
        return digest_json(self)


class EvalSample(Record):
    """One graded completion. `finished` is False when it was cut at the token limit."""

    text: str
    tokens: int
    finished: bool
    outcome: Outcome
    answer: str
    defects: tuple[str, ...] = ()
    """What is wrong with the text itself: refusal, pii (`runner.defects`)."""
    well_formed: bool | None = None
    """Whether it has the item's form; None where the item asks for none."""


class ItemCounts(NamedTuple):
    """One item's samples as whole numbers: all that a verdict rests on."""

    samples: int
    right: int
    ungraded: int
    """Samples without a verdict; `unreadable` of them for their reference."""
    unreadable: int
    no_answer: int
    truncated: int
    refusal: int
    pii: int
    tokens: int
    prompt_tokens: int
    malformed: int | None
    """None where the item asks for no form."""


class ItemResult(Record):
    """All samples of one item, in the order of their seeds."""

    id: str
    samples: tuple[EvalSample, ...]
    prompt_tokens: int = 0

    def counts(self) -> ItemCounts:
        forms = [sample.well_formed for sample in self.samples if sample.well_formed is not None]
        return ItemCounts(
            samples=len(self.samples),
            right=sum(sample.outcome.score == 1 for sample in self.samples),
            ungraded=sum(sample.outcome.score is None for sample in self.samples),
            unreadable=sum(sample.outcome is Outcome.unparsable_gold for sample in self.samples),
            no_answer=sum(sample.outcome is Outcome.no_answer for sample in self.samples),
            truncated=sum(not sample.finished for sample in self.samples),
            refusal=sum("refusal" in sample.defects for sample in self.samples),
            pii=sum("pii" in sample.defects for sample in self.samples),
            tokens=sum(sample.tokens for sample in self.samples),
            prompt_tokens=self.prompt_tokens,
            malformed=forms.count(False) if forms else None,
        )


class EvalArm(Record):
    """One model's run over one suite."""

    model: ModelRef
    protocol: Protocol
    results: tuple[ItemResult, ...]
