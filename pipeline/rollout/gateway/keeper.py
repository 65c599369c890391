"""The slots of the embedded gateway: a server for each model that is wanted, or one for two of which the second is an
adapter over the first. A model is in the slot file while its server answers for it, and goes from there after the file
has stopped naming it."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from typing import Self

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store
from pipeline.rollout.gateway.split import ServedSlot, SlotTable
from pipeline.serving.adapters import ServedAdapter, load_adapter, unload_adapter
from pipeline.serving.endpoint import served_name
from pipeline.serving.server_process import ModelSlot, model_slot

DRAIN_S = 1.0
"""Between the slot file that no longer names a server and the server's end: requests on their way are answered."""


class SlotKeeper:
    """`with SlotKeeper(...) as keeper: keeper.serve([champion, candidate])`; all servers end with the block."""

    def __init__(self, store: Store, model_name: str, limit: int, log: Callable[[str], None]) -> None:
        self._store, self._model_name, self._limit, self._log = store, model_name, limit, log
        self._kept: dict[str, tuple[ModelSlot, ExitStack]] = {}
        """By the digest of the model whose weights a server holds."""
        self._over: dict[str, str] = {}
        """Of each model that is served as an adapter: the digest of its base, whose server has it."""

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

    def serve(self, models: Sequence[ModelRef], adapters: Mapping[str, ServedAdapter] | None = None) -> None:
        """Serve these and no others; `adapters`: by digest, those that can be served over another of them. What serves
        already goes on; a server that has ended is started again. Raises RuntimeError with its last lines when one does
        not start; the others serve."""
        wanted = {model.digest: model for model in models}
        over = {digest: each for digest, each in (adapters or {}).items() if {digest, each.base} <= wanted.keys()}
        for digest in [digest for digest, (slot, _) in self._kept.items() if slot.process.ended]:
            self._log(f"slot {digest[:12]}: its server has ended, and is started again")
            self._end(digest)
        failed = self._start([model for digest, model in wanted.items() if digest not in over])
        failed += self._start([wanted[digest] for digest, each in over.items() if not self._put(digest, each)])
        self._list(wanted)
        retired = [digest for digest in self._over if digest not in wanted or digest in self._kept]
        unwanted = [digest for digest in self._kept if digest not in wanted]
        if retired or unwanted:
            time.sleep(DRAIN_S)
        for digest in retired:
            with suppress(ValueError, OSError):  # it goes with its server otherwise
                unload_adapter(self._kept[self._over.pop(digest)][0].url, served_name(self._model_name, digest))
        for digest in unwanted:
            self._end(digest)
        for error in failed:
            raise error

    def _start(self, models: Sequence[ModelRef]) -> list[BaseException]:
        """Start servers for those that have none. Returns why some do not start."""
        starting = [model for model in models if model.digest not in self._kept]
        with ThreadPoolExecutor(max_workers=max(1, len(starting))) as pool:  # each takes its time to load
            begun = {model.digest: pool.submit(self._started, model) for model in starting}
        self._kept |= {digest: start.result() for digest, start in begun.items() if start.exception() is None}
        return [error for start in begun.values() if (error := start.exception()) is not None]

    def _put(self, digest: str, each: ServedAdapter) -> bool:
        """Have the server of its base serve a model, as an adapter. False where the model needs a server of its own."""
        if digest in self._kept or each.base not in self._kept:
            return digest in self._kept
        if self._over.get(digest) == each.base:
            return True
        url = self._kept[each.base][0].url
        try:
            load_adapter(url, served_name(self._model_name, digest), each.adapter.uri)
        except (ValueError, OSError) as error:
            self._log(f"slot {digest[:12]}: gets a server of its own ({error})")
            return False
        self._over[digest] = each.base
        self._log(f"slot {digest[:12]}: an adapter over {each.base[:12]}, at {url}")
        return True

    def _list(self, wanted: Collection[str]) -> None:
        """Name these in the slot file, each by its own server where it has one."""
        held = self._kept | {
            digest: self._kept[base] for digest, base in self._over.items() if digest not in self._kept
        }
        slots = tuple(
            ServedSlot(digest=digest, url=slot.url, name=served_name(self._model_name, digest))
            for digest, (slot, _) in held.items()
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
        self._over = {model: base for model, base in self._over.items() if base != digest}
        self._kept.pop(digest)[1].close()
