"""The slots of the embedded gateway: a server for each model that is wanted. A model is in the slot file while its
server answers, and its server ends after the file has stopped naming it."""

import time
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Self

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store
from pipeline.rollout.gateway.split import ServedSlot, SlotTable
from pipeline.serving.endpoint import served_name
from pipeline.serving.server_process import ModelSlot, model_slot

DRAIN_S = 1.0
"""Between the slot file that no longer names a server and the server's end: requests on their way are answered."""


class SlotKeeper:
    """`with SlotKeeper(...) as keeper: keeper.serve([champion, candidate])`; all servers end with the block."""

    def __init__(self, store: Store, model_name: str, limit: int, log: Callable[[str], None]) -> None:
        self._store, self._model_name, self._limit, self._log = store, model_name, limit, log
        self._kept: dict[str, tuple[ModelSlot, ExitStack]] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self._list(())
        for digest in list(self._kept):
            self._end(digest)

    @property
    def due(self) -> bool:
        """Whether `serve` has something to do for the same models: a server has ended."""
        return any(slot.process.ended for slot, _ in self._kept.values())

    def serve(self, models: Sequence[ModelRef]) -> None:
        """Serve these and no others. What serves already goes on; a server that has ended is started again. Raises
        RuntimeError with its last lines when one does not start; the others serve."""
        wanted = {model.digest: model for model in models}
        for digest in [digest for digest, (slot, _) in self._kept.items() if slot.process.ended]:
            self._log(f"slot {digest[:12]}: its server has ended, and is started again")
            self._end(digest)
        starting = [model for digest, model in wanted.items() if digest not in self._kept]
        with ThreadPoolExecutor(max_workers=max(1, len(starting))) as pool:  # each takes its time to load
            begun = {model.digest: pool.submit(self._started, model) for model in starting}
        self._kept |= {digest: start.result() for digest, start in begun.items() if start.exception() is None}
        self._list(wanted)
        if over := [digest for digest in self._kept if digest not in wanted]:
            time.sleep(DRAIN_S)
        for digest in over:
            self._end(digest)
        for start in begun.values():
            start.result()

    def _list(self, wanted: Collection[str]) -> None:
        slots = tuple(
            ServedSlot(digest=digest, url=slot.url, name=served_name(self._model_name, digest))
            for digest, (slot, _) in self._kept.items()
            if digest in wanted
        )
        self._store.write(layout.slot_file(self._model_name), SlotTable(slots=slots))

    def _started(self, model: ModelRef) -> tuple[ModelSlot, ExitStack]:
        stack = ExitStack()
        folder = self._store.path(layout.gateway(self._model_name, "slots", model.digest[:12]))
        slot = stack.enter_context(model_slot(self._model_name, model, self._limit, folder))
        self._log(f"slot {model.digest[:12]}: serves at {slot.url}")
        return slot, stack

    def _end(self, digest: str) -> None:
        self._kept.pop(digest)[1].close()
