"""An event loop in a thread of its own, in which a server is asked: a caller may be inside of another loop too.

`done` is called in the caller's thread. What it writes is written before another question takes the answer's place: a
kill costs at most the answers of as many questions as may be in flight.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Generic, TypeVar

C = TypeVar("C")
Q = TypeVar("Q")
A = TypeVar("A")


class AskingLoop(Generic[C]):
    """The loop and the client that lives in it."""

    def __init__(self, loop: asyncio.AbstractEventLoop, client: C, concurrency: int) -> None:
        self._loop, self.client, self._concurrency = loop, client, concurrency
        self._closing = asyncio.Event()

    def all(
        self, asked: Sequence[Q], answer: Callable[[Q], Awaitable[A]], done: Callable[[int, A], None] | None
    ) -> list[A]:
        """Every answer, in the order of the questions. A `done` that raises ends the asking; no request that waits is
        then made. An `answer` that raises ends it too: its error is raised, after `done` had the answers before."""
        answered: queue.SimpleQueue[tuple[int, A, asyncio.Event] | None] = queue.SimpleQueue()

        async def work(places: Iterator[int]) -> None:
            for place in places:
                taken = asyncio.Event()
                answered.put((place, await answer(asked[place]), taken))
                await taken.wait()

        async def ask() -> None:
            places = iter(range(len(asked)))
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(min(len(asked), self._concurrency)):
                        group.create_task(work(places))
            finally:
                answered.put(None)

        asking = asyncio.run_coroutine_threadsafe(ask(), self._loop)
        answers: dict[int, A] = {}
        try:
            while (item := answered.get()) is not None:
                place, one, taken = item
                answers[place] = one
                if done is not None:
                    done(place, one)
                self._loop.call_soon_threadsafe(taken.set)
        except BaseException:  # whatever ended the caller ends the asking
            asking.cancel()
            raise
        try:
            asking.result()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return [answers[place] for place in range(len(asked))]

    async def closed(self) -> None:
        """Returns after `close`."""
        await self._closing.wait()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._closing.set)


@contextmanager
def open_asking_loop(
    name: str, client: Callable[[], AbstractAsyncContextManager[C]], concurrency: int
) -> Generator[AskingLoop[C]]:
    """A client in a loop of its own, until the block ends. `client` is called, and opened, in that loop's thread."""
    started: Future[AskingLoop[C]] = Future()

    async def run() -> None:
        async with client() as opened:
            running = AskingLoop(asyncio.get_running_loop(), opened, concurrency)
            started.set_result(running)
            await running.closed()

    def serve() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # the boundary of the thread: whoever opens the client is told
            if started.done():
                raise
            started.set_exception(error)

    thread = threading.Thread(target=serve, name=name, daemon=True)
    thread.start()
    running = started.result()
    try:
        yield running
    finally:
        running.close()
        thread.join()
