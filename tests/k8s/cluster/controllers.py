"""The controllers of the tests' cluster: one thread that brings the storage to rest after every change.

Level-triggered, as the real ones: each round looks at everything and makes one step, and what it changes calls the
next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

from . import garbage, jobsets, rayjobs, scheduler, volumes
from .jobs import Jobs
from .kinds import Refused
from .kueue import Kueue
from .storage import Storage
from .volcano import Volcano

Reconcile = Callable[[Storage], None]
CLOCK_S = 0.1
"""How late a deadline, a back-off or a time to live may be noticed."""
RACES = (404, 409)


@contextmanager
def controllers(
    storage: Storage,
    backoff_s: float = 0.2,
    pods_ready_timeout_s: float | None = None,
    requeue_s: float = 0.2,
    requeues: int | None = None,
    scheduling: bool = True,
) -> Generator[None]:
    """All controllers at work until the end of the block; what one of them raised is raised there.

    `backoff_s`: before a Job's first replacement of a failed pod. The next three: Kueue's waitForPodsReady, its wait
    after an eviction and how many of those it grants. Kueue works where the storage has a ClusterQueue. `scheduling`:
    False leaves every pod unbound, for a test that binds by hand.
    """
    kueue = Kueue(pods_ready_timeout_s, requeue_s, requeues)
    reconciles: list[Reconcile] = [kueue.reconcile, jobsets.reconcile, Jobs(backoff_s).reconcile, Volcano().reconcile]
    reconciles += [
        rayjobs.reconcile,
        *([scheduler.reconcile] if scheduling else []),
        volumes.reconcile,
        garbage.reconcile,
    ]
    stop, failures = threading.Event(), list[Exception]()
    thread = threading.Thread(target=_run, args=(storage, reconciles, stop, failures), daemon=True, name="controllers")
    thread.start()
    try:
        yield
    finally:
        stop.set()
        with storage.changed:
            storage.changed.notify_all()
        thread.join(timeout=30)
    if failures:
        raise failures[0]


def settle(storage: Storage, reconciles: Sequence[Reconcile], rounds: int = 100) -> None:
    """Rounds until one changes nothing."""
    for _ in range(rounds):
        before = _version(storage)
        for reconcile in reconciles:
            try:
                reconcile(storage)
            except Refused as refused:
                # Somebody else was faster, as it happens to real controllers: the next round sees what they did.
                if refused.code not in RACES and "it is being terminated" not in refused.message:
                    raise
        if _version(storage) == before:
            return
    raise AssertionError(f"The controllers do not come to rest within {rounds} rounds.")


def _run(storage: Storage, reconciles: list[Reconcile], stop: threading.Event, failures: list[Exception]) -> None:
    while not stop.is_set():
        before = _version(storage)
        try:
            settle(storage, reconciles)
        except Exception as error:  # the thread's boundary: the block that started it raises it
            failures.append(error)
            return
        with storage.changed:
            if not stop.is_set() and _version(storage) == before:
                storage.changed.wait(timeout=CLOCK_S)


def _version(storage: Storage) -> str:
    return storage.list("Namespace")[1]
