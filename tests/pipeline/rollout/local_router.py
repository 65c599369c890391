"""A router whose weights are one file: the traffic split of tests that need no gateway."""

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store, locked
from pipeline.rollout.router import Readiness, Split


class LocalRouter:
    """The embedded traffic split: its weights are in `router.json`."""

    def __init__(self, store: Store, model_name: str) -> None:
        self._store = store
        self._name = layout.rollout(model_name, "router.json")

    def read(self) -> Split | None:
        return self._in_force()

    def apply(self, split: Split) -> None:
        with locked(self._store.path(f"{self._name}.lock")):
            current = self._in_force()
            if current is None or current.epoch <= split.epoch:
                self._store.write(self._name, split)

    def ready(self, model: ModelRef) -> Readiness:
        """It loads a model when it is asked."""
        return Readiness(served_digest=model.digest, replicas=1)

    def _in_force(self) -> Split | None:
        return self._store.read(self._name, Split)
