"""The level of each gate: LORD++, online control of the false discovery rate (Ramdas, Yang, Wainwright and Jordan 2017,
arXiv 1710.00499). A gate that shows nothing spends of it, a promotion earns it back."""

from collections.abc import Sequence

PERIOD = 365
"""Nights, and gates, after which the account begins anew."""
DECAY = 0.8
"""A gate that comes j gates after a start or a promotion gets a part of it in proportion to j ** -DECAY: slow enough
that the 300th gate has the power of the first where one of ten candidates is better (benchmarks/nights.py)."""
_TOTAL = sum(n**-DECAY for n in range(1, PERIOD + 1))


def level(rate: float, gate: int, promoted: Sequence[int]) -> float:
    """One-sided level of the improvement test of the gate with this number in its period, from 1, so that at most
    `rate` of the promotions are expected to be no better. `promoted`: the numbers of the earlier gates whose candidates
    were promoted, rising."""
    earned = [rate / 2, *[rate] * len(promoted)][: len(promoted)]  # the first earns what the start did not spend
    return rate / 2 * _part(gate) + sum(each * _part(gate - at) for each, at in zip(earned, promoted, strict=True))


def _part(age: int) -> float:
    """Parts over a period sum up to 1."""
    return age**-DECAY / _TOTAL
