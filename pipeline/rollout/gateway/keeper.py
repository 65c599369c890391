"""The slots of the embedded gateway: a server for each model that is wanted. A model is in the slot file while its
server answers and may have users, and its server ends after the file has stopped naming it."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import NamedTuple, Self

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store
from pipeline.rollout.gateway.split import ServedSlot, write_slots
from pipeline.serving.endpoint import served_name
from pipeline.serving.server_process import ModelSlot, model_slot

DRAIN_S = 1.0
"""Between the slot file that no longer names a server and the server's end: requests on their way are answered."""


class _Kept(NamedTuple):
    slot: ModelSlot
    served: ServedSlot
    stack: ExitStack


Admit = Callable[[ServedSlot], str]
"""Why a server that was started may not have users yet, or ""."""


class SlotKeeper:
    """`with SlotKeeper(...) as keeper: keeper.serve([champion, candidate])`; all servers end with the block."""

    def __init__(
        self, store: Store, model_name: str, limit: int, log: Callable[[str], None], admit: Admit = lambda slot: ""
    ) -> None:
        self._store, self._model_name, self._limit, self._log, self._admit = store, model_name, limit, log, admit
        self._kept: dict[str, _Kept] = {}
        self._waiting: dict[str, str] = {}
        """Why servers that run may not have users yet, as far as they were asked, by digest."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        write_slots(self._store, self._model_name, ())
        for digest in list(self._kept):
            self._end(digest)

    @property
    def due(self) -> bool:
        """Whether `serve` has something to do for the same models: a server has died, or may not have users yet."""
        return bool(self._waiting) or any(kept.slot.process.ended for kept in self._kept.values())

    def serve(self, models: Sequence[ModelRef]) -> None:
        """Serve these and no others. What serves already goes on; a server that has ended is started again. Raises
        RuntimeError with its last lines when one does not start; the others serve."""
        wanted = {model.digest: model for model in models}
        for digest in [digest for digest, kept in self._kept.items() if kept.slot.process.ended]:
            self._log(f"slot {digest[:12]}: its server has ended, and is started again")
            self._end(digest)
        starting = [model for digest, model in wanted.items() if digest not in self._kept]
        try:
            with ThreadPoolExecutor(max_workers=max(1, len(starting))) as pool:  # each takes its time to load
                begun = {model.digest: pool.submit(self._started, model) for model in starting}
            up = {digest: start.result() for digest, start in begun.items() if start.exception() is None}
            self._kept |= up
            self._waiting |= dict.fromkeys(up, "")
            for start in begun.values():
                start.result()
        finally:
            self._list(list(wanted))
        if over := [digest for digest in self._kept if digest not in wanted]:
            time.sleep(DRAIN_S)
        for digest in over:
            self._end(digest)

    def _list(self, wanted: Sequence[str]) -> None:
        """Name the servers in the file that may have users: first those that had them, for a warm-up takes its time."""
        self._write(wanted)
        for digest in [each for each in wanted if each in self._waiting]:
            if reason := self._admit(self._kept[digest].served):
                if reason != self._waiting[digest]:
                    self._log(f"slot {digest[:12]}: gets no users yet: {reason}")
                self._waiting[digest] = reason
            else:
                del self._waiting[digest]
                self._write(wanted)

    def _write(self, wanted: Sequence[str]) -> None:
        named = (self._kept[each].served for each in wanted if each in self._kept and each not in self._waiting)
        write_slots(self._store, self._model_name, list(named))

    def _started(self, model: ModelRef) -> _Kept:
        stack = ExitStack()
        folder = self._store.path(layout.gateway(self._model_name, "slots", model.digest[:12]))
        slot = stack.enter_context(model_slot(self._model_name, model, self._limit, folder))
        self._log(f"slot {model.digest[:12]}: serves at {slot.url}")
        served = ServedSlot(digest=model.digest, url=slot.url, name=served_name(self._model_name, model.digest))
        return _Kept(slot, served, stack)

    def _end(self, digest: str) -> None:
        self._waiting.pop(digest, None)
        self._kept.pop(digest).stack.close()
