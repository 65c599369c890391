"""A router whose weights are one file: the traffic split of tests that need no gateway."""

from __future__ import annotations

import fcntl
from collections.abc import Generator
from contextlib import contextmanager

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store
from pipeline.rollout.evidence import Unit
from pipeline.rollout.router import Arm, Readiness, Split, route


class LocalRouter:
    """The embedded traffic split: routes by a salted hash of the request id, by the weights in `router.json`."""

    unit: Unit = "request"

    def __init__(self, store: Store, model_name: str) -> None:
        self._store = store
        self._name = layout.rollout(model_name, "router.json")

    def read(self) -> Split | None:
        return self._in_force()

    def apply(self, split: Split) -> None:
        with self._locked():
            current = self._in_force()
            if current is None or current.epoch <= split.epoch:
                self._store.write(self._name, split)

    def ready(self, model: ModelRef) -> Readiness:
        """It loads a model when it is asked."""
        return Readiness(served_digest=model.digest, replicas=1)

    def servers(self, model: ModelRef) -> tuple[str, ...]:
        return ()

    def route(self, request_id: str) -> Arm:
        """The arm that answers this request. A rising weight only ever moves requests towards the canary."""
        split = self.read()
        return "champion" if split is None else route(split, request_id)

    def _in_force(self) -> Split | None:
        return self._store.read(self._name, Split)

    @contextmanager
    def _locked(self) -> Generator[None]:
        """Held while the epoch is compared and the file replaced; the kernel drops it with the process."""
        path = self._store.path(f"{self._name}.lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w") as handle:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
