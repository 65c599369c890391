"""Which model a conversation began with: an answer to words of another model says little of the one that answers."""

from __future__ import annotations

from pipeline.gateway.asked import CallerRequest
from pipeline.gateway.split_file import model_of
from pipeline.rollout.router import Split

REMEMBERED = 65_536


class Conversations:
    """The first models of sessions that this process has seen."""

    def __init__(self) -> None:
        self._began: dict[str, str] = {}

    def switched(self, asked: CallerRequest, unit: str, digest: str, before: Split | None) -> bool:
        """Whether the conversation began with another model than `digest`. One that began elsewhere, or before this
        process did, is taken to have begun under the split `before` the one in force."""
        if asked.first_turn:
            self._remember(asked.session, digest)
            return False
        began = self._began.get(asked.session) if asked.session else None
        if began is None:
            began = digest if before is None else model_of(before, unit)
        return began != digest

    def _remember(self, session: str, digest: str) -> None:
        if not session:
            return
        self._began[session] = digest
        if len(self._began) > REMEMBERED:
            del self._began[next(iter(self._began))]
