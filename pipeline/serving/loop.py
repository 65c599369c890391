"""A client in an event loop of its own thread, asked from a thread that may be inside of another loop."""

import asyncio
import queue
from collections.abc import Awaitable, Callable, Generator, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from typing import Generic, TypeVar

from anyio.from_thread import BlockingPortal, start_blocking_portal

C = TypeVar("C")
Q = TypeVar("Q")
A = TypeVar("A")


class AskingLoop(Generic[C]):
    """The loop and the client that lives in it."""

    def __init__(self, portal: BlockingPortal, client: C, concurrency: int) -> None:
        self._portal, self.client, self._concurrency = portal, client, concurrency

    def all(
        self, asked: Sequence[Q], answer: Callable[[Q], Awaitable[A]], done: Callable[[int, A], None] | None
    ) -> list[A]:
        """Every answer, in the order of the questions. A `done` or an `answer` that raises ends the asking. `done` is
        called in this thread, before another question takes the answer's place: a kill costs at most the answers of as
        many questions as may be in flight."""
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

        asking = self._portal.start_task_soon(ask)
        answers: dict[int, A] = {}
        try:
            while (item := answered.get()) is not None:
                place, one, taken = item
                answers[place] = one
                if done is not None:
                    done(place, one)
                self._portal.start_task_soon(taken.set)
        except BaseException:  # whatever ended the caller ends the asking
            asking.cancel()
            raise
        try:
            asking.result()
        except ExceptionGroup as group:
            raise group.exceptions[0] from None
        return [answers[place] for place in range(len(asked))]


@contextmanager
def open_asking_loop(client: AbstractAsyncContextManager[C], concurrency: int) -> Generator[AskingLoop[C]]:
    """The client, opened in a loop of its own until the block ends."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(client) as opened:
        yield AskingLoop(portal, opened, concurrency)
