"""What goes wrong around a rollout: a process that dies, metrics that lie, and a router that tells of every change."""

from collections.abc import Callable

from pipeline.rollout.evidence import ArmLook, UnitCounts
from pipeline.rollout.router import LocalRouter, Split


class Crash(BaseException):
    """The process dies here."""


NAN = float("nan")
SLOW_S = 60.0
"""How far the clocks of two controllers may be apart: as much of a dwell may be missing."""
SPOILERS = {
    "good": lambda look: look,
    "missing": lambda look: None,
    "nan": lambda look: look.model_copy(update={"canary": ArmLook(units={"": UnitCounts(requests=1, correct=NAN)})}),
    "stale": lambda look: look.model_copy(
        update={"window_start": look.window_start - 1e4, "window_end": look.window_end - 1e4}
    ),
    "future": lambda look: look.model_copy(update={"window_end": look.window_end + 1}),
    "empty": lambda look: look.model_copy(update={"canary": ArmLook(units={})}),
    "error": lambda look: 1 / 0,
}


class WatchedRouter(LocalRouter):
    """The router, with a fuse around its side effect and a witness of every weight that came into force."""

    def __init__(self, store, name, fuse: Callable[[], None], witness: Callable[[Split | None, Split], None]):
        super().__init__(store, name)
        self.fuse, self.witness = fuse, witness

    def apply(self, split):
        self.fuse()
        before = self.read()
        super().apply(split)
        after = self.read()
        if before != after:
            self.witness(before, after)
        self.fuse()
