"""Where the tasks of a stage run: processes of this machine, a Ray cluster that others keep, or code of the user's own.

Owns the order of results, the bound on what runs at once, and what happens when a worker is killed: its task is run
again, because a task writes under fresh names and may be run any number of times. Refuses to move rows between
workers: a task is a small description, its result a small account, and the rows lie in the storage that both name.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

from pebble import ProcessExpired, ProcessFuture, ProcessPool

from pipeline.core.processes import die_with_parent
from pipeline.recipe import Compute
from pipeline.recipe.custom import create

T = TypeVar("T")
R = TypeVar("R")
Log = Callable[[str], None]

RUNS = 3
"""Times that a task whose worker is killed is run before the stage fails."""


class Engine(Protocol):
    def map(self, function: Callable[[T], R], tasks: Sequence[T], log: Log) -> Iterator[R]:
        """The results in the order of the tasks; at most `compute.workers` of them run at once.

        `function` is a top-level one, and its argument and result are small and can be pickled. What it raises is
        raised here, and what still runs is stopped. Raises ValueError when a task's worker is killed RUNS times.
        """
        ...


class WorkerLost(Exception):
    """A worker vanished under its task: killed from outside, out of memory, or its machine went away."""


@contextmanager
def open_engine(compute: Compute, ray: str = "", modules: Sequence[str] = ()) -> Generator[Engine]:
    """The engine that the recipe names, and its workers until the block ends. `ray`: the cluster's address.

    `modules`: those of the tasks. Processes of this machine start at once and import them, while the caller goes on.

    Raises ValueError when Ray is asked for and is not installed or no cluster answers, or custom code cannot be loaded.
    """
    if compute.engine is not None:
        with create(compute.engine, compute.workers) as engine:
            yield engine
    elif compute.data == "ray":
        with _cluster(ray):
            yield _InOrder(_RayTasks(), compute.workers)
    elif compute.workers == 1:
        yield _Here()
    else:
        processes = _Processes(compute.workers, modules)
        try:
            yield _InOrder(processes, 2 * compute.workers)  # the next ones wait while this process commits
        finally:
            processes.close()


class _Here:
    """One worker is this process: nothing to start, and the same results."""

    def map(self, function: Callable[[T], R], tasks: Sequence[T], log: Log) -> Iterator[R]:
        yield from map(function, tasks)


class _Workers(Protocol):
    """What runs tasks in no particular order. A handle stands for one run of one task."""

    def submit(self, function: Callable[[Any], Any], task: Any) -> Any: ...

    def finished(self, handles: list[Any]) -> Any:
        """One of the handles, as soon as one is done."""
        ...

    def result(self, handle: Any) -> Any:
        """What the task returned or raised. Raises WorkerLost."""
        ...

    def cancel(self, handle: Any) -> None: ...


class _InOrder:
    def __init__(self, workers: _Workers, width: int) -> None:
        self._workers, self._width = workers, width

    def map(self, function: Callable[[T], R], tasks: Sequence[T], log: Log) -> Iterator[R]:
        runs = [0] * len(tasks)
        todo = list(reversed(range(len(tasks))))
        running: dict[Any, int] = {}
        done: dict[int, R] = {}
        try:
            for place in range(len(tasks)):
                while place not in done:
                    while todo and len(running) < self._width:
                        number = todo.pop()
                        runs[number] += 1
                        running[self._workers.submit(function, tasks[number])] = number
                    handle = self._workers.finished(list(running))
                    number = running.pop(handle)
                    try:
                        done[number] = self._workers.result(handle)
                    except WorkerLost as lost:
                        if runs[number] == RUNS:
                            raise ValueError(
                                f"The worker of task {number + 1} of {len(tasks)} was lost {RUNS} times ({lost}). "
                                "If memory ran out, lower compute.workers or compute.memory_mb, or give it more."
                            ) from lost
                        log(f"the worker of task {number + 1} of {len(tasks)} was lost ({lost}); once more")
                        todo.append(number)
                yield done.pop(place)
        finally:
            for handle in running:
                self._workers.cancel(handle)


class _Processes:
    """Spawned processes that stay up between tasks and end with this one."""

    def __init__(self, workers: int, modules: Sequence[str]) -> None:
        self._pool = ProcessPool(
            max_workers=workers,
            initializer=partial(_begin, parent=os.getpid(), modules=tuple(modules)),
            context=get_context("spawn"),
        )
        if modules:
            self._pool.schedule(bool)  # without a task the pool starts no process

    def submit(self, function: Callable[[Any], Any], task: Any) -> ProcessFuture[Any]:
        return self._pool.schedule(function, args=[task])

    def finished(self, handles: list[ProcessFuture[Any]]) -> Future[Any]:
        return wait(handles, return_when=FIRST_COMPLETED).done.pop()

    def result(self, handle: Future[Any]) -> Any:
        try:
            return handle.result()
        except ProcessExpired as expired:
            raise WorkerLost(f"it ended with code {expired.exitcode}") from expired

    def cancel(self, handle: Future[Any]) -> None:
        handle.cancel()

    def close(self) -> None:
        self._pool.stop()
        self._pool.join()


def _begin(parent: int, modules: Sequence[str]) -> None:
    die_with_parent(parent=parent)
    for module in modules:
        import_module(module)


class _RayTasks:
    """Tasks of one CPU each. They see the storage and the environment of the node that they run on."""

    def submit(self, function: Callable[[Any], Any], task: Any) -> Any:
        import ray

        # Runs are counted in one place, `_InOrder`: Ray by itself would try without end when memory is short.
        return ray.remote(num_cpus=1, max_retries=0)(function).remote(task)

    def finished(self, handles: list[Any]) -> Any:
        import ray

        return ray.wait(handles, num_returns=1)[0][0]

    def result(self, handle: Any) -> Any:
        import ray
        from ray.exceptions import RayError, RayTaskError

        try:
            return ray.get(handle)
        except RayTaskError as error:
            raise error.cause from None  # the function's own exception, without the cluster's copy of its traceback
        except RayError as error:
            raise WorkerLost(f"{type(error).__name__}: {str(error).strip().splitlines()[0]}") from error

    def cancel(self, handle: Any) -> None:
        import ray

        ray.cancel(handle, force=True)


@contextmanager
def _cluster(address: str) -> Generator[None]:
    """A connection to the cluster at this address; one that stands already is shared."""
    try:
        import ray
    except ImportError as error:
        raise ValueError(
            "compute.data is ray and Ray is not installed. Run pip install 'preference-tuning[ray]', or set "
            "compute.data=local."
        ) from error
    mine = not ray.is_initialized()
    if mine:
        ray.init(
            address=_reachable(address),
            namespace="preference-tuning",
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
    try:
        yield
    finally:
        if mine:
            ray.shutdown()


def _reachable(address: str) -> str:
    """The address, once something answers there: Ray itself would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"compute.data is ray and nothing answers at RAY_ADDRESS={address!r} ({error}). Set it to the cluster's "
            "head, such as ray-head:6379, or set compute.data=local."
        ) from error
    return address
