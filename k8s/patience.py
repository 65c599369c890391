"""How long a launch bears with each state of its gang, by the time between two looks."""

from __future__ import annotations

from k8s.classify import NO_PROGRESS, NOT_STARTED, Verdict

NO_PROGRESS_S = 300.0
"""For an image that can't be pulled and a claim that is not there: registries and people have bad minutes."""


class Timeouts:
    """Adds up what passed since the last look to what was seen then; a state that goes on too long is over."""

    def __init__(self, start_timeout_s: float, timeout_s: float, now: float) -> None:
        self._start_timeout_s, self._timeout_s, self._at = start_timeout_s, timeout_s, now
        self._cause = ""
        self._ran_s = self._idle_s = self._unmended_s = 0.0

    def spent(self, verdict: Verdict, now: float) -> Verdict | None:
        """The verdict that ends the attempt, once a state has lasted too long; None to go on.

        What the gang ran is summed over its restarts, of this launch alone.
        """
        passed, self._at, before = now - self._at, now, self._cause
        self._cause = verdict.cause
        self._ran_s += passed if before == "running" else 0.0
        self._idle_s = 0.0 if verdict.cause not in NOT_STARTED else self._idle_s + passed * (before in NOT_STARTED)
        unmended = verdict.cause in NO_PROGRESS
        self._unmended_s = self._unmended_s + passed * (before in NO_PROGRESS) if unmended else 0.0
        if self._ran_s > self._timeout_s:
            return Verdict("timed_out", f"it ran for {self._ran_s:.0f} s, longer than training.timeout_s")
        if self._unmended_s > NO_PROGRESS_S:
            return verdict._replace(why=f"{verdict.why}, for {self._unmended_s:.0f} s")
        if self._idle_s > self._start_timeout_s:
            return verdict._replace(why=f"{verdict.why}, for {self._idle_s:.0f} s")
        return None
