"""What several of these tests need: a process to fork trainers from."""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks.kills import Attempt, Zygote


class Forks(Zygote):
    """A zygote whose newest attempt can be listened to. An attempt runs what the entry point runs."""

    _before, _at = 0, ""

    def attempt(self, plan: Path, sent: signal.Signals | None = None, after_s: float = 0.0, at: str = "") -> Attempt:
        """Run the trainer once; with `sent`, send it that signal, if it still runs: when it has said `at`, if given."""
        self._before, self._at = self._size(), at
        return super().attempt(plan, sent, after_s)

    def said(self) -> str:
        """What the newest attempt has printed, up to now."""
        if not self.output.exists():
            return ""
        with self.output.open("rb") as printed:
            printed.seek(self._before)
            return printed.read().decode(errors="replace")

    def _size(self) -> int:
        return self.output.stat().st_size if self.output.exists() else 0

    def _signal(self, pid: int, sent: signal.Signals, after_s: float) -> None:
        while self._at not in self.said() and psutil.pid_exists(pid):
            time.sleep(0.01)
        super()._signal(pid, sent, after_s)


@pytest.fixture(scope="session")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Has imported the trainer, which takes ten seconds of a core: an attempt costs no more than it trains."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("DISABLE_MLFLOW_INTEGRATION", "TRUE")  # as the entry point does, before those imports
        made = Forks(tmp_path_factory.mktemp("zygote") / "output.log")
    with made as found:
        yield found
