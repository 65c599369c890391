"""Runs the tasks of a stage: in processes of this machine, or on an existing Ray cluster. A task is a small description
that may run any number of times; rows stay in the storage that it names."""

import logging
import os
import socket
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from multiprocessing import get_context
from typing import Any, Protocol, TypeVar

from pebble import ProcessExpired, ProcessPool

from pipeline.core.processes import die_with_parent
from pipeline.recipe import Compute
from pipeline.traces.context import Log

T = TypeVar("T")
R = TypeVar("R")

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
def open_engine(compute: Compute, ray: str = "") -> Generator[Engine]:
    """The recipe's engine. `ray`: the cluster's address. Raises ValueError when Ray is not installed or no cluster
    answers."""
    if compute.data == "ray":
        with _cluster(ray):
            yield _Workers(_submit_to_ray, _lost_in_ray, compute.workers)
    elif compute.workers == 1:
        yield _Here()
    else:
        start = partial(die_with_parent, parent=os.getpid())
        pool = ProcessPool(max_workers=compute.workers, initializer=start, context=get_context("spawn"))
        try:
            # The next ones wait while this process commits.
            yield _Workers(lambda call, task: pool.schedule(call, args=[task]), _lost_process, 2 * compute.workers)
        finally:
            pool.stop()
            pool.join()


class _Here:
    def map(self, function: Callable[[T], R], tasks: Sequence[T], log: Log) -> Iterator[R]:
        yield from map(function, tasks)


class _Workers:
    """Tasks as futures of `submit`, at most `width` at once. `lost` says how the worker of a task was lost, and nothing
    where the task itself raised the error."""

    def __init__(
        self, submit: Callable[[Callable[[Any], Any], Any], Future[Any]], lost: Callable[[Exception], str], width: int
    ) -> None:
        self._submit, self._lost, self._width = submit, lost, width

    def map(self, function: Callable[[T], R], tasks: Sequence[T], log: Log) -> Iterator[R]:
        running: dict[int, Future[Any]] = {}
        number, runs = 0, 1
        try:
            while number < len(tasks):
                for each in range(number, min(number + self._width, len(tasks))):
                    if each not in running:
                        running[each] = self._submit(function, tasks[each])
                name = f"task {number + 1} of {len(tasks)}"
                try:
                    result = running.pop(number).result()
                except Exception as error:
                    if not (how := self._lost(error)):
                        raise
                    if runs == RUNS:
                        raise ValueError(
                            f"The worker of {name} was lost {RUNS} times ({how}). If memory ran out, lower "
                            "compute.workers or compute.memory_mb, or give it more."
                        ) from error
                    log(f"the worker of {name} was lost ({how}); once more")
                    runs += 1
                else:
                    yield result
                    number, runs = number + 1, 1
        finally:
            for future in running.values():
                future.cancel()


def _lost_process(error: Exception) -> str:
    return f"it ended with code {error.exitcode}" if isinstance(error, ProcessExpired) else ""


def _submit_to_ray(function: Callable[[Any], Any], task: Any) -> Future[Any]:
    """A task of one CPU. It sees the storage and the environment of the node that it runs on."""
    import ray

    # `_Workers` counts the attempts: Ray would try without end when memory is short.
    return ray.remote(num_cpus=1, max_retries=0)(function).remote(task).future()


def _lost_in_ray(error: Exception) -> str:
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
