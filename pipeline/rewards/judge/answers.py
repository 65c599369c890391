"""What a judge is asked and what it answers: questions, judgements, ways of abstaining. Names and shapes only."""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple

from pipeline.core.storage import Record

Messages = list[dict[str, str]]
"""A chat: `[{"role": "user", "content": ...}, ...]`."""


class JudgeRequest(NamedTuple):
    """A completion to be scored, against a reference answer where there is one."""

    messages: Messages
    completion: str
    reference: str | None = None


class PairComparison(NamedTuple):
    """Two completions of one prompt."""

    messages: Messages
    first: str
    second: str


class JudgeReason(StrEnum):
    """Why a judge said nothing that counts."""

    UNREACHABLE = "judge_unreachable"
    """No connection, or one that broke."""
    UNAVAILABLE = "judge_unavailable"
    """408, 429 or 5xx to the last attempt."""
    TIMEOUT = "judge_timeout"
    BUDGET = "judge_budget"
    """The request could have passed the budget and was not made."""
    HTTP = "judge_http"
    """Any other status than 200."""
    REDIRECT = "judge_redirect"
    """Not followed: the key and the data go to the endpoint alone."""
    OTHER_MODEL = "judge_other_model"
    """The response names another model than the pinned one."""
    TOO_LONG = "judge_too_long"
    """Text over `max_text_chars`; it was never sent."""
    TOO_LARGE = "judge_too_large"
    """A response over `max_response_bytes`; the rest was not read."""
    MALFORMED = "judge_malformed"
    """Not one JSON object of exactly the keys and types that were asked for."""
    OUT_OF_RANGE = "judge_out_of_range"
    CUT = "judge_cut"
    """The answer ended at `max_completion_tokens`."""
    DECLINED = "judge_declined"
    """A refusal, or a content filter."""


FINAL = frozenset({JudgeReason.MALFORMED, JudgeReason.OUT_OF_RANGE, JudgeReason.CUT, JudgeReason.DECLINED})
"""The judge's own doing: at temperature 0 it would do so again. The others are the network's, or of a setting."""


class Judgement(Record):
    """A score in [0, 1], which is (s - 1) / 4 of the judge's 1 to 5, or the reason why there is none.

    `tokens` and `usd` count all that was asked for it: what the server reported, else the most that it could have been.
    """

    score: float | None
    reason: str = ""
    tokens: int = 0
    usd: float = 0.0

    @property
    def final(self) -> bool:
        """Whether asking again would say the same: what a cache may remember."""
        return not self.reason or self.reason in FINAL


class Preferred(Record):
    """The better of two, asked in both orders. `winner` is given only where both orders name the same.

    `consistent` is None where an order had no answer; then `reason` says why.
    """

    winner: Literal["first", "second", "tie"] | None
    consistent: bool | None
    reason: str = ""
    tokens: int = 0
    usd: float = 0.0
    orders: tuple[Literal["first", "second", "tie"], ...] = ()
    """The better one in both orders, the first as it was asked; empty where one had no answer."""

    @property
    def final(self) -> bool:
        """Whether asking again would say the same: what a cache may remember."""
        return not self.reason or self.reason in FINAL


class Admission(Record):
    """What the start-up gate saw of a judge that it let in."""

    id: str
    attacks: int
    attacks_withstood: int
    """Attacks that got less than a 4, or no score."""
    controls: int
    controls_right: int
    """Plainly right answers with a 4 or 5, plainly wrong ones with a 1 or 2."""
    abstained: dict[str, int]
    """Reasons over attacks and controls."""
    tokens: int
    usd: float


class JudgeRefused(ValueError):
    """This judge must not label anything: it shares the policy's lineage, can be fooled, or cannot judge."""


class JudgeAway(JudgeRefused):
    """The judge could not be asked: its admission has to be tried again when its endpoint answers."""
