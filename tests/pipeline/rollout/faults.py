"""What goes wrong around a rollout: a process that dies, metrics that lie, and a router that does not do as asked."""

from collections.abc import Callable
from typing import Literal

from pipeline.core.storage import ModelRef
from pipeline.rollout.evidence import ArmLook, UnitCounts
from pipeline.rollout.router import Readiness, Split
from tests.pipeline.rollout.local_router import LocalRouter


class Crash(BaseException):
    """The process dies here."""


NAN = float("nan")
SLOW_S = 20.0
"""How far the clocks of two controllers may be apart: as much of a dwell may be missing."""
SPOILERS = {
    "good": lambda look: look,
    "missing": lambda look: None,
    "nan": lambda look: look.model_copy(
        update={"canary": ArmLook(units={"": UnitCounts(requests=1, graded=1, correct=NAN)})}
    ),
    "stale": lambda look: look.model_copy(
        update={
            "window_start": look.window_start - 1e4,
            "window_end": look.window_end - 1e4,
            "graded_until": look.window_end - 1e4,
        }
    ),
    "future": lambda look: look.model_copy(update={"window_end": look.window_end + 1}),
    "empty": lambda look: look.model_copy(update={"canary": ArmLook(units={})}),
    "error": lambda look: 1 / 0,
}
RouterFault = Literal["", "unreadable", "unwritable", "deaf", "lying", "late"]
SlotFault = Literal["", "loading", "wrong", "raises", "few", "unsure"]
MANY = 100
"""Servers of the champion, of which every weight takes more than one."""


class FaultyRouter(LocalRouter):
    """A router with faults, a fuse around its side effect, and a witness of every weight that came into force.

    `deaf` ignores what it is asked, `lying` ignores it and reads as if it had not, `late` obeys when it is read.
    """

    fault: RouterFault = ""
    slot: SlotFault = ""

    def __init__(self, store, name, fuse: Callable[[], None], witness: Callable[[Split | None, Split], None]):
        super().__init__(store, name)
        self.fuse, self.witness = fuse, witness
        self.asked: Split | None = None

    @property
    def really(self) -> Split | None:
        """What routes."""
        return self._in_force()

    def read(self):
        if self.fault == "unreadable":
            raise OSError("connection refused")
        if self.fault == "lying":
            return self.asked or self.really
        before = self.really
        if self.fault != "deaf" and self.asked is not None:
            self._obey()
        return before

    def apply(self, split):
        self.fuse()
        if self.fault == "unwritable":
            raise OSError("read-only")
        if self.asked is None or split.epoch >= self.asked.epoch:
            self.asked = split
        if self.fault in ("", "unreadable"):
            self._obey()
        self.fuse()

    def ready(self, model: ModelRef) -> Readiness:
        if self.slot == "raises":
            raise OSError("no route to host")
        if self.slot == "loading":
            return Readiness(served_digest="", replicas=0, reason="loading")
        if self.slot == "unsure":
            return Readiness(served_digest=model.digest, replicas=1, reason="warming up")
        serves = self.really is not None and self.really.champion.digest == model.digest
        replicas = MANY if self.slot == "few" and serves else 1
        return Readiness(served_digest="another" if self.slot == "wrong" else model.digest, replicas=replicas)

    def moved_by_hand(self, weight: int) -> None:
        """A person changes the weights, and nothing else."""
        self.asked = None
        split = self.really
        assert split is not None
        moved = split.model_copy(update={"canary_weight": weight, "champion_weight": 100 - weight})
        self._store.write(self._name, moved)

    def _obey(self):
        asked, self.asked = self.asked, None
        before = self.really
        assert asked is not None
        super().apply(asked)
        after = self.really
        assert after is not None
        if before != after:
            self.witness(before, after)
