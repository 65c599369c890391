"""Processes that can be killed: each item of work has a deadline, and what one item does costs no other its result.
Items travel in batches and results one by one: a deadline starts when the item before it is done."""

from __future__ import annotations

import os
import resource
import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from enum import StrEnum
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from typing import Any, Generic, NamedTuple, TypeVar

from pipeline.core.processes import adopt_orphans, die_with_parent, kill_with_descendants

T = TypeVar("T")
R = TypeVar("R")

RUNS = 2
"""Times that an item is run whose worker vanishes under it."""
BATCH = 16
RECYCLE_AFTER = 10_000
"""Items of one worker: a start costs more than a second of imports."""
START_S = 300.0
FAILED_STARTS = 3
READY = "ready"
ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
"""Variables that code of others may read; keys, addresses and everything else are left out."""


class WorkerFailure(StrEnum):
    """Why an item has no result."""

    timeout = "timeout"
    died = "died"
    """Its worker vanished under it twice, or ran out of memory."""
    raised = "raised"
    refused = "refused"
    """Not run: `run` was told so when its turn came."""


class Work(NamedTuple):
    """What a worker runs; both are top-level functions of a module that is light to import."""

    function: Callable[[Any], Any]
    warm_up: Callable[[], None]
    """Imports what `function` needs, before any deadline starts. A ValueError of it is raised by the pool's `run`."""
    of_others: bool = False
    """Runs code that is not the pipeline's: its output is discarded, of the environment it sees ENVIRONMENT, and what
    it starts ends with its worker."""
    memory_field: str = "rewards.verifier.memory_mb"
    """Field of the recipe to raise when workers end before they can work."""
    start_s: float = START_S
    """From a worker's start until it can work."""


class Pool(Generic[T, R]):
    """Spawned workers that stay up between calls and end with this process. Thread-safe: calls run one by one."""

    def __init__(self, work: Work, workers: int, memory_mb: int) -> None:
        self._work, self._count, self._memory_mb = work, workers, memory_mb
        self._workers: list[_Worker] = []
        self._lock = threading.Lock()

    def run(
        self,
        items: Sequence[T],
        deadlines_s: Sequence[float],
        done: Callable[[int, R | WorkerFailure], None] = lambda number, result: None,
        refuses: Callable[[int], bool] = lambda number: False,
    ) -> list[R | WorkerFailure]:
        """The results in the order of the items; `done` gets each as soon as it is there, with the item's number.
        `refuses` is asked before an item is handed to a worker.

        Raises ValueError when workers cannot start.
        """
        with self._lock:
            run = _Run(items, deadlines_s, done, refuses)
            try:
                while len(run.results) < len(items):
                    self._staff(run)
                    self._listen(run)
            finally:
                for worker in [w for w in self._workers if w.held]:  # interrupted: its results belong to no one
                    self._dismiss(worker)
            return [run.results[number] for number in range(len(items))]

    def close(self) -> None:
        """Kill the workers; the next `run` starts new ones."""
        with self._lock:
            for worker in list(self._workers):
                self._dismiss(worker)

    def _staff(self, run: _Run) -> None:
        """Replace the missing and the worn-out, and give the idle something to do."""
        for worker in [
            w for w in self._workers if not w.held and (w.done >= RECYCLE_AFTER or not w.process.is_alive())
        ]:
            self._dismiss(worker)
        unfinished = len(run.items) - len(run.results)
        while len(self._workers) < min(self._count, unfinished):
            self._workers.append(_Worker(self._work, self._memory_mb))
        for worker in self._workers:
            if worker.ready and not worker.held and run.waiting:
                size = max(1, min(BATCH, len(run.waiting) // (2 * self._count)))
                try:
                    if taken := run.next(size):
                        worker.give(taken, run)
                except OSError:  # it ended a moment ago: nothing of this has been run
                    run.waiting.extendleft(reversed(worker.held))
                    worker.held.clear()
                    self._dismiss(worker)

    def _listen(self, run: _Run) -> None:
        """Wait for a result, the end of a worker or a deadline, whichever comes first."""
        listening = [w for w in self._workers if w.held or not w.ready]
        patience = max(0.0, min((w.due for w in listening), default=0.0) - time.monotonic())
        readable = set(wait([w.connection for w in listening], patience))
        for worker in listening:
            if worker.connection in readable:
                self._hear(worker, run)
            elif time.monotonic() >= worker.due:
                self._lose(worker, run, WorkerFailure.timeout if worker.process.is_alive() else WorkerFailure.died)

    def _hear(self, worker: _Worker, run: _Run) -> None:
        try:
            message = worker.connection.recv()
        except (EOFError, OSError):
            self._lose(worker, run, WorkerFailure.died)
            return
        if not worker.ready:
            if message != READY:
                self._dismiss(worker)
                raise ValueError(message)
            worker.ready, run.failed_starts = True, 0
        elif message is None:  # out of memory: what else it holds may be damaged
            run.lost[worker.held[0]] = RUNS
            self._lose(worker, run, WorkerFailure.died)
        else:
            run.finish(worker.held.popleft(), message)
            worker.next_deadline(run)

    def _lose(self, worker: _Worker, run: _Run, why: WorkerFailure) -> None:
        """Kill a worker; the item that it was at is judged or tried again, its others wait for the next."""
        self._dismiss(worker)
        if not worker.ready:
            run.failed_starts += 1
            if run.failed_starts >= FAILED_STARTS:
                raise ValueError(
                    f"Checking workers ended {FAILED_STARTS} times before they could work (the last with code "
                    f"{worker.process.exitcode}). Raise {self._work.memory_field} ({self._memory_mb}), or give this "
                    f"machine more memory; a start has {self._work.start_s:g} s, imports included."
                )
            return
        run.lost[worker.held[0]] += 1
        if why is WorkerFailure.timeout or run.lost[worker.held[0]] >= RUNS:
            run.finish(worker.held.popleft(), why)
        run.waiting.extendleft(reversed(worker.held))

    def _dismiss(self, worker: _Worker) -> None:
        self._workers.remove(worker)
        if self._work.of_others and worker.process.pid:
            kill_with_descendants(worker.process.pid)
        worker.process.kill()
        worker.process.join()
        worker.connection.close()


class _Run:
    """The state of one call."""

    def __init__(
        self,
        items: Sequence[Any],
        deadlines_s: Sequence[float],
        done: Callable[[int, Any], None],
        refuses: Callable[[int], bool],
    ) -> None:
        self.items, self.deadlines_s, self._done, self._refuses = items, deadlines_s, done, refuses
        self.waiting = deque(range(len(items)))
        self.results: dict[int, Any] = {}
        self.lost: Counter[int] = Counter()
        self.failed_starts = 0

    def next(self, size: int) -> list[int]:
        """Up to so many of the waiting items; those that are refused are finished."""
        taken: list[int] = []
        while self.waiting and len(taken) < size:
            number = self.waiting.popleft()
            if self._refuses(number):
                self.finish(number, WorkerFailure.refused)
            else:
                taken.append(number)
        return taken

    def finish(self, number: int, result: Any) -> None:
        self.results[number] = result
        self._done(number, result)


class _Worker:
    def __init__(self, work: Work, memory_mb: int) -> None:
        context = get_context("spawn")
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, work, memory_mb, os.getpid()), daemon=True)
        self.process.start()
        theirs.close()  # so that its end is seen as the end of the pipe
        self.held: deque[int] = deque()
        self.ready, self.done, self.due = False, 0, time.monotonic() + work.start_s

    def give(self, numbers: list[int], run: _Run) -> None:
        self.held.extend(numbers)
        self.done += len(numbers)
        self.connection.send([run.items[number] for number in numbers])
        self.next_deadline(run)

    def next_deadline(self, run: _Run) -> None:
        if self.held:
            self.due = time.monotonic() + run.deadlines_s[self.held[0]]


def _serve(connection: Connection, work: Work, memory_mb: int, parent: int) -> None:
    """The life of a worker: batches in, results out."""
    die_with_parent(parent=parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    if work.of_others:
        adopt_orphans()
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for descriptor in (1, 2):  # whatever it is written with: standard output is read by others
            os.dup2(nowhere, descriptor)
        for name in os.environ.keys() - set(ENVIRONMENT):
            del os.environ[name]
    try:
        work.warm_up()
    except ValueError as error:  # what a person has to mend: the next worker would fail alike
        connection.send(str(error))
        return
    connection.send(READY)
    while True:
        try:
            batch = connection.recv()
        except EOFError:
            return
        for item in batch:
            try:
                result = work.function(item)
            except MemoryError:
                connection.send(None)
                return
            except Exception:  # the boundary to parsers that may raise anything: a failed check is data, not a crash
                result = WorkerFailure.raised
            connection.send(result)
