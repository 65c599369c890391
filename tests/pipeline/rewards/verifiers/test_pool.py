import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pipeline.rewards.verifiers.pool import Pool, Work, WorkerFailure
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[4]


def _nothing() -> None: ...


def _no_start() -> None:
    raise MemoryError


def _do(item: tuple[str, str]) -> str:
    what, argument = item
    if what == "echo":
        return argument
    if what == "sleep":
        time.sleep(float(argument))
    if what == "hang":
        Path(argument).write_text(str(os.getpid()), encoding="utf-8")
        return str(len(str(7 ** (10**9))))  # C-level arithmetic: no signal handler and no other thread gets a turn
    if what == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if what == "memory":
        return str(len(bytearray(1 << 40)))
    if what == "raise":
        raise RecursionError
    return f"{what} is over" if what != "pid" else str(os.getpid())


def _until(condition: Callable[[], bool], patience_s: float = 60.0) -> None:
    end = time.monotonic() + patience_s
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def _pool(workers: int) -> Pool[tuple[str, str], str]:
    return Pool(Work(_do, _nothing), workers, 2048)


@pytest.fixture
def one() -> Iterator[Pool[tuple[str, str], str]]:
    pool = _pool(1)
    yield pool
    pool.close()


@pytest.mark.parametrize("workers", one_and_variants([2, 1]))
def test_results_follow_the_items(workers: int) -> None:
    pool = _pool(workers)
    kinds = {0: ("raise", WorkerFailure.raised), 3: ("die", WorkerFailure.died), 5: ("memory", WorkerFailure.died)}
    items = [(kinds[n % 50][0], "") if n % 50 in kinds else ("echo", str(n)) for n in range(100)]
    expected = [kinds[n % 50][1] if n % 50 in kinds else str(n) for n in range(100)]
    assert pool.run(items, [60.0] * 100) == expected
    assert pool.run(items[:3], [60.0] * 3) == expected[:3]
    assert pool.run([], []) == []
    pool.close()


def test_a_deadline_starts_with_its_item(one: Pool[tuple[str, str], str], tmp_path: Path) -> None:
    """Items wait for longer than their deadline, first behind one that hangs and then behind each other."""
    items = [("echo", "first"), ("hang", str(tmp_path / "pid")), *[("sleep", "0.1")] * 20]
    result = one.run(items, [1.5] * 22)
    assert result == ["first", WorkerFailure.timeout, *["sleep is over"] * 20]


def test_workers_stay_up_and_are_replaced(one: Pool[tuple[str, str], str]) -> None:
    def worker() -> int:
        (pid,) = one.run([("pid", "")], [60.0])
        return int(pid)

    first = worker()
    assert worker() == first
    os.kill(first, signal.SIGKILL)  # while it is idle
    _until(lambda: not multiprocessing.active_children())
    second = worker()
    assert second != first
    assert worker() == second
    one.close()
    assert not multiprocessing.active_children()


def test_workers_that_cannot_start_are_refused() -> None:
    pool: Pool[tuple[str, str], str] = Pool(Work(_do, _no_start), 2, 2048)
    with pytest.raises(ValueError, match=r"before it could work. Raise rewards\.verifier\.memory_mb"):
        pool.run([("echo", "")], [60.0])
    pool.close()


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    """Not even one deep in C-level arithmetic, which hears neither signals nor the end of a pipe."""
    note = tmp_path / "pid"
    code = (
        "from tests.pipeline.rewards.verifiers.test_pool import _pool\n"
        f"if __name__ == '__main__': _pool(2).run([('hang', {str(note)!r})], [600.0])"
    )
    script = tmp_path / "parent.py"
    script.write_text(code)
    parent = subprocess.Popen([sys.executable, script], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)})
    _until(lambda: note.exists() and bool(note.read_text()))
    worker = Path("/proc", note.read_text())
    assert "multiprocessing" in (worker / "cmdline").read_text()
    parent.kill()
    parent.wait()
    _until(lambda: not worker.exists() or "(zombie)" in (worker / "status").read_text())
