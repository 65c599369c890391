"""Uploads beside the training: one thread, and the newest checkpoint replaces one that waits. No step waits for it, and
no error of it stops a training."""

import threading
from collections.abc import Callable
from pathlib import Path

from pipeline.recipe import Checkpoints
from pipeline.training.checkpoints.manifest import Origin, read
from pipeline.training.checkpoints.mirror import Mirror


class Uploads:
    """Starts its thread at once, which claims the mirror for this attempt."""

    def __init__(self, mirror: Mirror, origin: Origin, settings: Checkpoints, say: Callable[[str], None]) -> None:
        self._mirror, self._origin, self._settings, self._say = mirror, origin, settings, say
        self._changed = threading.Condition()
        self._waiting: Path | None = None
        self._flying: Path | None = None
        self._failed: Path | None = None
        self._closed = False
        self.erased = False
        """Whether an erasure has closed the mirror to this training."""
        threading.Thread(target=self._work, name="checkpoint-uploads", daemon=True).start()

    def offer(self, folder: Path) -> None:
        """Upload `folder` when the one in flight is done, in the place of any that waits."""
        with self._changed:
            self._waiting, self._failed = folder, None
            self._changed.notify_all()

    def needs(self, folder: Path) -> bool:
        """Whether `folder` is in flight or waits, and must not be removed."""
        with self._changed:
            return folder in (self._waiting, self._flying)

    def drain(self, timeout_s: float) -> bool:
        """Wait until nothing waits or flies; one that failed last is tried once more. Whether the newest is up."""
        with self._changed:
            if self._failed is not None and self._flying is None:
                self._waiting, self._failed = self._failed, None
                self._changed.notify_all()
            idle = self._changed.wait_for(lambda: self._closed or not (self._waiting or self._flying), timeout_s)
            return idle and not (self._waiting or self._flying or self._failed)

    def close(self) -> None:
        """Take no more. One in flight may go on to its end, or be cut by the end of the process."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _work(self) -> None:
        try:
            self._mirror.claim()
            if self._mirror.is_closed():
                self._withdraw()
        except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
            self._say(f"the mirror {self._mirror.uri} cannot be written to yet ({_cause(error)})")
        while (folder := self._next()) is not None:
            up = self._upload(folder)
            with self._changed:
                self._flying = None
                self._failed = None if up or self._waiting else folder
                self._changed.notify_all()

    def _next(self) -> Path | None:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting is not None)
            if self._closed:
                return None
            self._flying, self._waiting = self._waiting, None
            return self._flying

    def _upload(self, folder: Path) -> bool:
        try:
            manifest = read(folder, self._origin)
            if not self._mirror.put(folder, manifest):
                if self._mirror.is_closed():
                    self._withdraw()
                    return False
                self._say(f"another attempt writes to the mirror {self._mirror.uri} now: this one uploads no more")
                self.close()
                return False
        except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
            self._say(f"checkpoint {folder.name} is not in the mirror ({_cause(error)}); the next one tries again")
            return False
        try:
            self._mirror.retain(manifest.step, self._settings)
        except Exception as error:  # the same boundary
            self._say(f"older checkpoints in the mirror {self._mirror.uri} were not cleared ({_cause(error)})")
        return True

    def _withdraw(self) -> None:
        self._say(f"an erasure has closed the mirror {self._mirror.uri} to this training: nothing more is uploaded")
        self.erased = True
        try:
            for line in self._mirror.clear():
                self._say(f"still in the mirror, {line}")
        finally:
            self.close()


def _cause(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
