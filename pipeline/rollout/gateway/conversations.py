"""Which model a conversation began with: an answer to words of another model says little of the one that answers."""

from __future__ import annotations

from pipeline.rollout.gateway.asked import CallerRequest
from pipeline.rollout.gateway.split_file import model_of
from pipeline.rollout.router import Split

REMEMBERED = 65_536
_SEVERAL = ""


class Conversations:
    """The models that answered the sessions which this process has seen."""

    def __init__(self) -> None:
        self._answered: dict[str, str] = {}

    def switched(self, asked: CallerRequest, unit: str, digest: str, before: Split | None) -> bool:
        """Whether another model than `digest` has answered in the conversation. One of another process, or without a
        session, is taken to have begun under the split `before` the one in force."""
        if asked.first_turn:
            return False
        answered = self._answered.get(asked.session) if asked.session else None
        if answered is None:
            answered = digest if before is None else model_of(before, unit)
        return answered != digest

    def answer(self, asked: CallerRequest, digest: str) -> None:
        """Note who answered."""
        if not asked.session:
            return
        first = digest if asked.first_turn else self._answered.get(asked.session, digest)
        self._answered[asked.session] = digest if first == digest else _SEVERAL
        if len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]
