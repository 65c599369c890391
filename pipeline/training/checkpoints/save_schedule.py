"""When to save: every so many steps, or by Young's rule (doi:10.1145/361147.361115), without Daly's higher-order terms
(doi:10.1016/j.future.2004.11.016), and at the latest after the mean time between interruptions."""

import math
from collections import deque
from statistics import median

from pipeline.recipe import Checkpoints

WINDOW = 5
"""Saves whose median counts: one slow disk write must not stretch the interval."""


class SaveSchedule:
    """Decides at each step whether to save after it."""

    def __init__(self, settings: Checkpoints) -> None:
        self._every_steps = settings.every_steps
        self._interruption_every_s = settings.interruption_every_s
        self._saves_s: deque[float] = deque(maxlen=WINDOW)

    def saved(self, seconds: float) -> None:
        """A save held the training up for so long."""
        assert math.isfinite(seconds) and seconds >= 0, seconds
        self._saves_s.append(seconds)

    @property
    def interval_s(self) -> float | None:
        """Seconds of training between two saves; None while steps decide."""
        if self._interruption_every_s is None or not self._saves_s:
            return None
        return min(math.sqrt(2 * median(self._saves_s) * self._interruption_every_s), self._interruption_every_s)

    def due(self, step: int, since_save_s: float, stride: int = 1) -> bool:
        """Whether to save after `step`, `since_save_s` after the last save ended (or the training began). `stride`:
        steps since it could last be saved; what came due among them is due now."""
        interval = self.interval_s
        if interval is not None:
            return since_save_s >= interval
        return step // self._every_steps > (step - stride) // self._every_steps
