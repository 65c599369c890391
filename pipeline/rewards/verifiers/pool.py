"""Processes that can be killed: each item of work has a deadline of its own, and what one item does costs no other its
result. Items travel in batches and results one by one, so that no process waits for its next item."""

import os
import resource
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import suppress
from enum import StrEnum
from multiprocessing import get_context
from multiprocessing.connection import Connection
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

from pipeline.core.processes import die_with_parent

T = TypeVar("T")
R = TypeVar("R")

BATCH = 16
START_S = 120.0
"""From a worker's start until it can work, imports included."""
READY = "ready"
ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "TZ", "LANG", "LC_ALL", "LC_CTYPE", "LD_LIBRARY_PATH", "OMP_NUM_THREADS")
"""Variables that code of others may read; keys, addresses and everything else are left out."""


class WorkerFailure(StrEnum):
    """Why an item has no result."""

    timeout = "timeout"
    died = "died"
    """Its worker vanished under it, or ran out of memory."""
    raised = "raised"


class Work(NamedTuple):
    """What a worker runs; both are top-level functions of a module that is light to import."""

    function: Callable[[Any], Any]
    warm_up: Callable[[], None]
    """Imports what `function` needs, before any deadline starts. A ValueError of it is raised by the pool's `run`."""
    of_others: bool = False
    """Runs code that is not the pipeline's: its output is discarded, of the environment it sees ENVIRONMENT, and what
    it starts in its own session ends with its worker."""
    memory_field: str = "rewards.verifier.memory_mb"
    """Field of the recipe to raise when workers end before they can work."""


class Pool(Generic[T, R]):
    """Spawned workers that stay up between calls and end with this process. Calls may come from any thread."""

    def __init__(self, work: Work, workers: int, memory_mb: int) -> None:
        self._workers = [_CheckProcess(work, memory_mb) for _ in range(workers)]
        self._idle: SimpleQueue[_CheckProcess] = SimpleQueue()
        for worker in self._workers:
            self._idle.put(worker)
        # The kernel ends a worker with the thread that started it: these threads live until `close`.
        self._threads = ThreadPoolExecutor(workers)
        self._lock = threading.Lock()

    def run(
        self,
        items: Sequence[T],
        deadlines_s: Sequence[float],
        done: Callable[[int, R | WorkerFailure], None] = lambda number, result: None,
    ) -> list[R | WorkerFailure]:
        """The results in the order of the items; `done` gets each as soon as it is there, with the item's number, one
        at a time and in another thread.

        Raises ValueError when workers cannot start.
        """

        def some(numbers: range) -> list[R | WorkerFailure]:
            worker, results = self._idle.get(), list[R | WorkerFailure]()
            place = slice(numbers.start, numbers.stop)
            try:
                for number, result in zip(numbers, worker.run(items[place], deadlines_s[place]), strict=True):
                    results.append(result)
                    with self._lock:
                        done(number, result)
            finally:
                self._idle.put(worker)
            return results

        size = max(1, min(BATCH, len(items) // (2 * len(self._workers))))
        every = range(len(items))
        futures = [self._threads.submit(some, every[start : start + size]) for start in every[::size]]
        try:
            wait(futures, return_when=FIRST_EXCEPTION)
            return [result for future in futures for result in future.result()]
        finally:
            for future in futures:
                future.cancel()

    def close(self) -> None:
        """Kill the workers, whatever they do."""
        for worker in self._workers:
            worker.close()
        self._threads.shutdown(cancel_futures=True)


class _CheckProcess:
    """A process that is replaced when it has ended or does not end its item in time."""

    def __init__(self, work: Work, memory_mb: int) -> None:
        self._work, self._memory_mb, self._closed = work, memory_mb, False
        self._process: Any = None
        self._connection: Any = None

    def run(self, items: Sequence[Any], deadlines_s: Sequence[float]) -> Iterator[Any]:
        """The result of each item; the deadline of one begins with the end of the one before it."""
        sent = False
        for number, deadline_s in enumerate(deadlines_s):
            if not sent and (self._process is None or not self._process.is_alive()):
                self._start()
            try:
                if not sent:
                    self._connection.send(items[number:])
                result = self._connection.recv() if self._connection.poll(deadline_s) else WorkerFailure.timeout
            except (EOFError, OSError):  # it vanished
                result = WorkerFailure.died
            sent = result not in (WorkerFailure.timeout, WorkerFailure.died)  # died: maybe damaged by a lack of memory
            if not sent:
                self._stop()
            yield result

    def close(self) -> None:
        self._closed = True
        self._kill()

    def _start(self) -> None:
        """Raises ValueError with what the warm-up said, or when the process ends before it can work."""
        self._stop()
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, self._work, self._memory_mb, os.getpid())
        self._process = context.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()  # so that its end is seen as the end of the pipe
        if self._closed:  # meanwhile
            self._kill()
        message = ""
        with suppress(EOFError, OSError):
            message = self._connection.recv() if self._connection.poll(START_S) else ""
        if message != READY:
            self._stop()
            raise ValueError(
                message
                or f"A checking worker ended before it could work. Raise {self._work.memory_field} "
                f"({self._memory_mb}), or give this machine more memory; a start has {START_S:g} s, imports included."
            )

    def _stop(self) -> None:
        if self._process is not None:
            self._kill()
            self._connection.close()
            self._process = None

    def _kill(self) -> None:
        if self._process is None:
            return
        if self._work.of_others:
            with suppress(ProcessLookupError):  # it has not begun its session yet
                os.killpg(self._process.pid, signal.SIGKILL)
        self._process.kill()
        self._process.join()


def _serve(connection: Connection, work: Work, memory_mb: int, parent: int) -> None:
    """The life of a worker: batches in, results out."""
    die_with_parent(parent=parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    resource.setrlimit(resource.RLIMIT_AS, (memory_mb << 20, memory_mb << 20))
    if work.of_others:
        os.setsid()
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
    with suppress(EOFError):
        while True:
            for item in connection.recv():
                try:
                    result = work.function(item)
                except MemoryError:
                    result = WorkerFailure.died
                except Exception:  # the boundary to parsers that may raise anything: a failed check is no crash
                    result = WorkerFailure.raised
                connection.send(result)
