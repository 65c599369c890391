"""Runs the tasks of a stage: in processes of this machine, on an existing Ray cluster, or by the user's own code.
A task is a small description that may run any number of times; rows stay in the storage that it names."""

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

from pebble import ProcessExpired, ProcessPool

from pipeline.core.processes import die_with_parent
from pipeline.recipe import Compute
from pipeline.recipe.custom import create

T = TypeVar("T")
R = TypeVar("R")
Log = Callable[[str], None]

RUNS = 3
"""Attempts at a task whose worker is killed."""


class Engine(Protocol):
    def map(self, function: Callable[[T], R], tasks: Sequence[T], log: Log) -> Iterator[R]:
        """The results in the order of the tasks; at most `compute.workers` of them run at once.

        `function` is a top-level one, and its argument and result are small and can be pickled. What it raises is
        raised here, and what still runs is stopped. Raises ValueError when a task's worker is killed RUNS times.
        """
        ...


@contextmanager
def open_engine(compute: Compute, ray: str = "", modules: Sequence[str] = ()) -> Generator[Engine]:
    """The recipe's engine. `ray`: the cluster's address. `modules`: what local processes import as they start.

    Raises ValueError when Ray is not installed or no cluster answers, or custom code cannot be loaded.
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
    def map(self, function: Callable[[T], R], tasks: Sequence[T], log: Log) -> Iterator[R]:
        yield from map(function, tasks)


class _Workers(Protocol):
    def submit(self, function: Callable[[Any], Any], task: Any) -> Future[Any]: ...

    def cancel(self, future: Future[Any]) -> None: ...

    def lost(self, error: Exception) -> str:
        """How the worker of a task was lost; empty where the task itself raised the error."""
        ...


class _InOrder:
    def __init__(self, workers: _Workers, width: int) -> None:
        self._workers, self._width = workers, width

    def map(self, function: Callable[[T], R], tasks: Sequence[T], log: Log) -> Iterator[R]:
        runs = [0] * len(tasks)
        todo = list(reversed(range(len(tasks))))
        running: dict[Future[Any], int] = {}
        done: dict[int, R] = {}
        try:
            for place in range(len(tasks)):
                while place not in done:
                    while todo and len(running) < self._width:
                        number = todo.pop()
                        runs[number] += 1
                        running[self._workers.submit(function, tasks[number])] = number
                    future = wait(running, return_when=FIRST_COMPLETED).done.pop()
                    number = running.pop(future)
                    try:
                        done[number] = future.result()
                    except Exception as error:
                        if not (lost := self._workers.lost(error)):
                            raise
                        if runs[number] == RUNS:
                            raise ValueError(
                                f"The worker of task {number + 1} of {len(tasks)} was lost {RUNS} times ({lost}). "
                                "If memory ran out, lower compute.workers or compute.memory_mb, or give it more."
                            ) from error
                        log(f"the worker of task {number + 1} of {len(tasks)} was lost ({lost}); once more")
                        todo.append(number)
                yield done.pop(place)
        finally:
            for future in running:
                self._workers.cancel(future)


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

    def submit(self, function: Callable[[Any], Any], task: Any) -> Future[Any]:
        return self._pool.schedule(function, args=[task])

    def cancel(self, future: Future[Any]) -> None:
        future.cancel()

    def lost(self, error: Exception) -> str:
        return f"it ended with code {error.exitcode}" if isinstance(error, ProcessExpired) else ""

    def close(self) -> None:
        self._pool.stop()
        self._pool.join()


def _begin(parent: int, modules: Sequence[str]) -> None:
    die_with_parent(parent=parent)
    for module in modules:
        import_module(module)


class _RayTasks:
    """Tasks of one CPU each. They see the storage and the environment of the node that they run on."""

    def submit(self, function: Callable[[Any], Any], task: Any) -> Future[Any]:
        import ray

        # `_InOrder` counts the attempts: Ray would try without end when memory is short.
        return ray.remote(num_cpus=1, max_retries=0)(function).remote(task).future()

    def cancel(self, future: Any) -> None:
        import ray

        ray.cancel(future.object_ref, force=True)

    def lost(self, error: Exception) -> str:
        from ray.exceptions import RayError, RayTaskError

        if isinstance(error, RayTaskError):
            raise error.cause from None  # the function's own exception, without the cluster's copy of its traceback
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}" if isinstance(error, RayError) else ""


@contextmanager
def _cluster(address: str) -> Generator[None]:
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
    """The address, once something answers there; Ray would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=10).close()
    except (OSError, ValueError) as error:
        raise ValueError(
            f"compute.data is ray and nothing answers at RAY_ADDRESS={address!r} ({error}). Set it to the cluster's "
            "head, such as ray-head:6379, or set compute.data=local."
        ) from error
    return address
