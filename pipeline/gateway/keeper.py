"""The slots that the embedded gateway serves from: a server for each model that is wanted, and for no other.

Owns that a model is in the slot file only while its server answers, and that a server whose model is no longer wanted
ends after the file has stopped naming it. Refuses to say which models are wanted: the rollout's record does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import NamedTuple, Self

from pipeline import layout
from pipeline.gateway.slots import ServedSlot, write_slots
from pipeline.serving.served_names import served_name
from pipeline.serving.slots import ModelSlot, model_slot
from pipeline.storage import ModelRef, Store

DRAIN_S = 1.0
"""Between the slot file that no longer names a server and the server's end: requests on their way are answered."""


class _Kept(NamedTuple):
    slot: ModelSlot
    stack: ExitStack


class SlotKeeper:
    """`with SlotKeeper(...) as keeper: keeper.serve([champion, candidate])`; all servers end with the block."""

    def __init__(self, store: Store, model_name: str, limit: int, log: Callable[[str], None]) -> None:
        """`limit`: tokens of an answer at most."""
        self._store, self._model_name, self._limit, self._log = store, model_name, limit, log
        self._kept: dict[str, _Kept] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        write_slots(self._store, self._model_name, ())
        for digest in list(self._kept):
            self._end(digest)

    @property
    def ended(self) -> bool:
        """Whether a server has died, so that `serve` has to start it again."""
        return any(kept.slot.ended for kept in self._kept.values())

    def serve(self, models: Sequence[ModelRef]) -> None:
        """Serve these and no others. What serves already goes on; a server that has ended is started again.

        Raises RuntimeError with its last lines when one does not start; the others serve.
        """
        wanted = {model.digest: model for model in models}
        for digest in [digest for digest, kept in self._kept.items() if kept.slot.ended]:
            self._log(f"slot {digest[:12]}: its server has ended, and is started again")
            self._end(digest)
        starting = [model for digest, model in wanted.items() if digest not in self._kept]
        try:
            with ThreadPoolExecutor(max_workers=max(1, len(starting))) as pool:  # each takes its time to load
                begun = {model.digest: pool.submit(self._started, model) for model in starting}
            self._kept |= {digest: start.result() for digest, start in begun.items() if start.exception() is None}
            for start in begun.values():
                start.result()
        finally:
            write_slots(self._store, self._model_name, [self._served(each) for each in wanted if each in self._kept])
        if over := [digest for digest in self._kept if digest not in wanted]:
            time.sleep(DRAIN_S)
        for digest in over:
            self._end(digest)

    def _started(self, model: ModelRef) -> _Kept:
        stack = ExitStack()
        folder = self._store.path(layout.gateway(self._model_name, "slots", model.digest[:12]))
        slot = stack.enter_context(model_slot(self._model_name, model, self._limit, folder, self._log))
        self._log(f"slot {model.digest[:12]}: serves at {slot.url}")
        return _Kept(slot, stack)

    def _served(self, digest: str) -> ServedSlot:
        name = served_name(self._model_name, digest)
        return ServedSlot(digest=digest, url=self._kept[digest].slot.url, name=name)

    def _end(self, digest: str) -> None:
        self._kept.pop(digest).stack.close()
