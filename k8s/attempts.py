"""The attempts at one training: a record for each, made before anything of it is in the cluster.

Owns the number that fences one attempt from the next. Records lie beside the plan, so they survive whoever launches.
"""

from __future__ import annotations

from collections.abc import Sequence

from k8s.ledger import LaunchAttempt
from pipeline.storage import Store


class Attempts:
    """The attempts at the plan of one iteration."""

    def __init__(self, store: Store, iteration: str) -> None:
        self._store, self._folder = store, f"iterations/{iteration}/training/attempts"

    def all(self) -> Sequence[LaunchAttempt]:
        """In their order."""
        folder = self._store.path(self._folder)
        names = sorted(path.name for path in folder.glob("attempt-*.json"))
        found = [self._store.read(f"{self._folder}/{name}", LaunchAttempt) for name in names]
        return [attempt for attempt in found if attempt is not None]

    def current(self, at: float) -> LaunchAttempt:
        """The newest attempt if it is not over, else a new one. Of two launchers that open one at once, one wins."""
        while True:
            newest = next(iter(reversed(self.all())), None)
            if newest is not None and newest.closed_at is None:
                return newest
            attempt = LaunchAttempt(
                attempt=newest.attempt + 1 if newest else 1, name="", opened_at=at, closed_at=None, outcome="", why="",
                restarts=0, requests=0,
            )  # fmt: skip
            if self._store.create(self._name(attempt), attempt):
                return attempt

    def settle(self, at: float) -> None:
        """Close what is open although the training is done: a launcher ended between the two."""
        for attempt in self.all():
            if attempt.closed_at is None:
                self.write(
                    attempt.model_copy(update={"closed_at": at, "outcome": "succeeded", "why": "its result is there"})
                )

    def write(self, attempt: LaunchAttempt) -> None:
        self._store.write(self._name(attempt), attempt)

    def _name(self, attempt: LaunchAttempt) -> str:
        return f"{self._folder}/attempt-{attempt.attempt:03}.json"
