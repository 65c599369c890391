"""What time-outs may cost: some completions are built to hang a checker, and each takes its whole deadline.

Owns the account: by whom a row is, and of all rows together. Once it is spent, a row is not checked, and says so.
Refuses to be charged for checks that end by themselves.
"""

from __future__ import annotations


class TimeBudget:
    """`each_s`: seconds of time-outs of the rows of one principal; `all_s`: of all rows."""

    def __init__(self, each_s: float, all_s: float) -> None:
        self._each_s, self._all_s = each_s, all_s
        self._lost_s: dict[str, float] = {}

    def charge(self, whose: str, seconds: float) -> None:
        self._lost_s[whose] = self._lost_s.get(whose, 0.0) + seconds

    def is_spent(self, whose: str) -> bool:
        """Whether another row of that principal is to be left unchecked."""
        return self._lost_s.get(whose, 0.0) >= self._each_s or sum(self._lost_s.values()) >= self._all_s
