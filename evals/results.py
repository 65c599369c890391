"""What one model answered to one suite: every graded sample, and the counts that the statistics go by.

Owns the records. Refuses to ask, to grade and to average: a check that timed out, failed or had no usable reference is
an outcome of its own, never a silent score of 0.
"""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

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


def _absent(value: object) -> bool:
    """Left out of the line, so that the digest of one that lacks it is what it was before there was such a field."""
    return value is None


class EvalSample(Record):
    """One graded completion. `finished` is False when it was cut at the token limit."""

    text: str
    tokens: int
    finished: bool
    outcome: Outcome
    answer: str
    defects: tuple[str, ...] = ()
    """What is wrong with the text itself: refusal, pii (evals/defects.py)."""
    well_formed: bool | None = Field(default=None, exclude_if=_absent)
    """Whether it has the item's form; None where the item asks for none."""


class ItemCounts(Record):
    """One item's samples as whole numbers: all that a verdict rests on, and nothing that says who asked what."""

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
    malformed: int | None = Field(default=None, exclude_if=_absent)
    """None where the item asks for no form."""


class ItemResult(Record):
    """All samples of one item, in the order of their seeds."""

    id: str
    samples: tuple[EvalSample, ...]
    prompt_tokens: int = 0
    salt: str = ""
    """The item's: without it no digest of these answers confirms a guess at them."""
    erased: ItemCounts | None = Field(default=None, exclude=True)
    """What remains of the samples once their texts are erased."""

    def counts(self) -> ItemCounts:
        if self.erased is not None:
            return self.erased
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
            malformed=_malformed([sample.well_formed for sample in self.samples]),
        )


def _malformed(well_formed: Sequence[bool | None]) -> int | None:
    return None if all(each is None for each in well_formed) else sum(each is False for each in well_formed)


class EvalArm(Record):
    """One model's run over one suite."""

    model: ModelRef
    protocol: Protocol
    results: tuple[ItemResult, ...]
