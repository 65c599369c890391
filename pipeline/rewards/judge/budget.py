"""What judges may spend: tokens and dollars, held before a request and settled after it, so that it is never passed."""

from __future__ import annotations

from typing import NamedTuple


class TokenUsage(NamedTuple):
    """Tokens of one request."""

    prompt: int
    completion: int

    @property
    def total(self) -> int:
        return self.prompt + self.completion


class Budget:
    """A budget of one process. `None` is no limit. `spent` counts what is settled; what is held counts against it."""

    def __init__(
        self,
        max_tokens: int | None,
        max_usd: float | None,
        usd_per_million_prompt_tokens: float,
        usd_per_million_completion_tokens: float,
        *,
        spent_tokens: int = 0,
        spent_usd: float = 0.0,
    ) -> None:
        self._max_tokens, self._max_usd = max_tokens, max_usd
        self._prices = (usd_per_million_prompt_tokens / 1e6, usd_per_million_completion_tokens / 1e6)
        self.spent_tokens, self.spent_usd = spent_tokens, spent_usd
        self._held = TokenUsage(0, 0)  # in tokens alone: dollars added and taken back again would leave a residue

    def usd(self, usage: TokenUsage) -> float:
        return usage.prompt * self._prices[0] + usage.completion * self._prices[1]

    def hold(self, most: TokenUsage) -> bool:
        """Reserve the most that a request can take. False, and nothing held, if that could pass the budget."""
        held = TokenUsage(self._held.prompt + most.prompt, self._held.completion + most.completion)
        if self._max_tokens is not None and self.spent_tokens + held.total > self._max_tokens:
            return False
        if self._max_usd is not None and self.spent_usd + self.usd(held) > self._max_usd:
            return False
        self._held = held
        return True

    def settle(self, held: TokenUsage, used: TokenUsage) -> None:
        """Give back what was held and count what was used (nothing, for a request that failed before it was billed)."""
        self._held = TokenUsage(self._held.prompt - held.prompt, self._held.completion - held.completion)
        self.spent_tokens += used.total
        self.spent_usd += self.usd(used)
