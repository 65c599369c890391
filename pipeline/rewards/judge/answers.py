"""What a judge is asked, what it answers and what it may spend: requests, judgements, reasons to abstain, a budget."""

from enum import StrEnum
from typing import Literal, NamedTuple

from pipeline.core.storage import Record
from pipeline.recipe.rewards import Judge, TokenPrice
from pipeline.rewards.findings import JudgeSpending
from pipeline.serving.inference import Messages


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
    """Any other status than 200; a redirect is not followed: the key and the data go to the endpoint alone."""
    OTHER_MODEL = "judge_other_model"
    """The response names another model than the pinned one."""
    TOO_LONG = "judge_too_long"
    """Text over `max_text_chars`; it was never sent."""
    TOO_LARGE = "judge_too_large"
    """A response over `max_response_bytes`; the rest was not read."""
    MALFORMED = "judge_malformed"
    """Not one JSON object of exactly the keys and types that were asked for: a refusal, prose, half a response."""
    OUT_OF_RANGE = "judge_out_of_range"
    CUT = "judge_cut"
    """The answer ended at `max_completion_tokens`."""


FINAL = frozenset({JudgeReason.MALFORMED, JudgeReason.OUT_OF_RANGE, JudgeReason.CUT})
"""The judge's own doing: at temperature 0 it would do so again. The others are the network's, or of a setting."""


class JudgeAnswer(Record):
    """What every answer has. `tokens` and `usd` count all that was asked for it: what the server reported, else the
    most that it could have been. `reason`: why there is no answer."""

    reason: str = ""
    tokens: int = 0
    usd: float = 0.0

    @property
    def final(self) -> bool:
        """Whether asking again would say the same: what a cache may remember."""
        return not self.reason or self.reason in FINAL


class Judgement(JudgeAnswer):
    """A score in [0, 1], which is (s - 1) / 4 of the judge's 1 to 5, or the reason why there is none."""

    score: float | None


Side = Literal["first", "second", "tie"]


class Preferred(JudgeAnswer):
    """The better of two, in both orders, the first as it was asked; empty where one had no answer."""

    orders: tuple[Side, ...] = ()


class Admission(Record):
    """A judge that the start-up gate let in, and the attacks that it withstood."""

    id: str
    attacks: int


class JudgeRefused(ValueError):
    """This judge must not label anything: it shares the policy's lineage, can be fooled, or cannot judge."""


class JudgeAway(JudgeRefused):
    """The judge could not be asked: its admission has to be tried again when its endpoint answers."""


class TokenUsage(NamedTuple):
    """Tokens of one request."""

    prompt: int
    completion: int

    @property
    def total(self) -> int:
        return self.prompt + self.completion


class Budget:
    """Tokens and dollars of one process, held before a request and settled after it, so that the recipe's limits are
    never passed. `spent` counts what is settled; what is held counts against the limits."""

    def __init__(self, settings: Judge, spent: JudgeSpending) -> None:
        price = settings.price or TokenPrice()
        self._max_tokens, self._max_usd = settings.max_tokens, settings.max_usd
        self._prices = (price.usd_per_million_prompt_tokens / 1e6, price.usd_per_million_completion_tokens / 1e6)
        self.spent = spent
        self._held = TokenUsage(0, 0)  # in tokens alone: dollars added and taken back again would leave a residue

    def usd(self, usage: TokenUsage) -> float:
        return usage.prompt * self._prices[0] + usage.completion * self._prices[1]

    def hold(self, most: TokenUsage) -> bool:
        """Reserve the most that a request can take. False, and nothing held, if that could pass the budget."""
        held = TokenUsage(self._held.prompt + most.prompt, self._held.completion + most.completion)
        if self._max_tokens is not None and self.spent.tokens + held.total > self._max_tokens:
            return False
        if self._max_usd is not None and self.spent.usd + self.usd(held) > self._max_usd:
            return False
        self._held = held
        return True

    def settle(self, held: TokenUsage, used: TokenUsage) -> None:
        """Give back what was held and count what was used (nothing, for a request that failed before it was billed)."""
        self._held = TokenUsage(self._held.prompt - held.prompt, self._held.completion - held.completion)
        self.spent.tokens += used.total
        self.spent.usd += self.usd(used)
