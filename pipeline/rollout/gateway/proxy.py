"""One request through the gateway. Intention to treat: where the canary fails before its first byte the champion
answers, and the failed try is recorded as the canary's."""

import os
import time
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import msgspec
from starlette.types import Receive, Scope, Send

from pipeline.rollout.gateway.asked import BadRequest, CallerRequest, RoutedUnit
from pipeline.rollout.gateway.caller import Caller, error_body, limited_body
from pipeline.rollout.gateway.counters import BREAKER_OPEN, IN_FLIGHT, SERVED, SLOTS, Counters
from pipeline.rollout.gateway.process import GatewaySettings
from pipeline.rollout.gateway.spans import Recorder, Served, Try
from pipeline.rollout.gateway.tables import ServedSlot, SlotTable, SplitWatch
from pipeline.rollout.gateway.upstream import Opened, SlotFailed, StreamBroken, Upstream
from pipeline.rollout.router import Arm, Split, route

REMEMBERED = 65_536
_SEVERAL = ""


class Conversations:
    """The models that answered the sessions which this process has seen."""

    def __init__(self) -> None:
        self._answered: dict[str, str] = {}

    def switched(self, asked: CallerRequest, unit: str, digest: str, before: Split | None) -> bool:
        """Whether another model than `digest` has answered in the conversation. One of another process, or without a
        session, is taken to have begun under the split `before` the one in force."""
        if asked.first_turn:
            return False
        answered = self._answered.get(asked.session) if asked.session else None
        if answered is None:
            canary = before.canary if before and route(before, unit) == "canary" else None
            answered = canary.digest if canary else before.champion.digest if before else digest
        return answered != digest

    def answer(self, asked: CallerRequest, digest: str) -> None:
        if not asked.session:
            return
        first = digest if asked.first_turn else self._answered.get(asked.session, digest)
        self._answered[asked.session] = digest if first == digest else _SEVERAL
        if len(self._answered) > REMEMBERED:
            del self._answered[next(iter(self._answered))]


OPEN_S = 1.0
FAILURES = 3
"""In a row: one in a hundred that fails must not take its neighbours' answers, which would count as its errors."""


class Breaker:
    """Circuit breaker of one slot: opens for 1 s after three failures in a row, then lets one request try."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._open_until = 0.0
        self._trying = False

    @property
    def is_open(self) -> bool:
        return self._failures >= FAILURES

    def lets(self) -> bool:
        """Whether this request may try. Whoever may has to say how it went."""
        if not self.is_open:
            return True
        if self._trying or self._clock() < self._open_until:
            return False
        self._trying = True
        return True

    def answered(self) -> None:
        self._failures, self._trying = 0, False

    def failed(self) -> None:
        self._failures, self._trying = self._failures + 1, False
        self._open_until = self._clock() + OPEN_S

    def ended(self) -> None:
        """The request is over, however: where the caller hung up, its slot neither answered nor failed."""
        self._trying = False


class Placed(NamedTuple):
    """Where a request goes: its arm, and the slots of both (`canary` is None where it may not be asked)."""

    arm: Arm
    champion: ServedSlot
    canary: ServedSlot | None


class Proxy:
    def __init__(self, settings: GatewaySettings, watch: SplitWatch, counters: Counters, recorder: Recorder) -> None:
        self._trusted, self._watch = settings.trust_user_header, watch
        self._counters, self._recorder = counters, recorder
        self._breakers: dict[str, Breaker] = {}
        self._conversations = Conversations()
        self.table = SlotTable(slots=())
        self.upstream = Upstream(settings.timeout_s)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = Caller(scope, receive, send, self._trusted)
        asked = CallerRequest(
            scope["path"].removeprefix("/v1/"), await limited_body(caller), dict(scope["headers"]), self._trusted
        )
        pinned = caller.pinned_arm()
        split = self._watch.in_force()
        trace_id = os.urandom(16).hex()
        unit = asked.of(trace_id)
        placed = self._placed(split, unit.id, pinned)
        served = self._served(asked, trace_id, unit, split, placed, pinned is not None)
        try:
            await self._answer(served, placed, caller)
        finally:
            self._counters.places[SERVED] += 1
            if not served.tries:  # an error of ours: it is logged by the server
                served.tries.append(_try_of(placed.champion, "champion").ended(error="gateway"))
            elif pinned is None and not served.tries[-1].error:
                self._conversations.answer(asked, served.tries[-1].digest)
            self._recorder.add(served)

    def _placed(self, split: Split | None, unit: str, pinned: Arm | None) -> Placed:
        if split is None:
            if len(self.table.slots) != 1 or pinned == "canary":
                raise BadRequest(503, "No split says which model is the champion. Apply one, or load a single slot.")
            return Placed("champion", self.table.slots[0], None)
        arm = pinned or route(split, unit)
        champion = self.table.slot_of(split.champion.digest)
        canary = None if split.canary is None else self.table.slot_of(split.canary.digest)
        if champion is None:
            raise BadRequest(503, f"No slot serves the champion, model {split.champion.digest[:12]}. Load it.")
        if pinned == "canary" and canary is None:
            raise BadRequest(503, "No slot serves a canary. Ask the champion, or load the canary.")
        return Placed(arm, champion, canary)

    def _served(
        self, asked: CallerRequest, trace_id: str, unit: RoutedUnit, split: Split | None, placed: Placed, pinned: bool
    ) -> Served:
        slot = placed.canary if placed.arm == "canary" and placed.canary is not None else placed.champion
        served = Served(asked, trace_id, placed.arm, unit.id, unit.kind, pinned=pinned)
        if split is not None:
            served.rollout, served.epoch, served.weight = split.rollout, split.epoch, split.canary_weight
            served.switched = not pinned and self._conversations.switched(
                asked, unit.id, slot.digest, self._watch.before
            )
        return served

    async def _answer(self, served: Served, placed: Placed, caller: Caller) -> None:
        failed: SlotFailed | None = None
        if placed.arm == "canary" and placed.canary is not None:
            breaker = self._breakers.setdefault(placed.canary.digest, Breaker())
            if served.pinned or breaker.lets():
                failed = await self._asked(served, placed.canary, "canary", caller, breaker)
                self._counters.places[BREAKER_OPEN] = breaker.is_open
                if failed is None:
                    return
        if failed is None or not served.pinned:
            failed = await self._asked(served, placed.champion, "champion", caller, None)
        if failed is not None:
            await caller.refuse(failed, served.trace_id)

    async def _asked(
        self, served: Served, slot: ServedSlot, name: Arm, caller: Caller, breaker: Breaker | None
    ) -> SlotFailed | None:
        """Ask one slot and pass its answer on; why it gave none, before a byte of it was passed on."""
        turn, opened = _try_of(slot, name), None
        place = IN_FLIGHT + self.table.place_of(slot) % SLOTS
        self._counters.places[place] += 1
        try:
            headers = caller.forwarded(served.trace_id)
            opened = await caller.unless_gone(self.upstream.ask(slot, served.asked, headers, served.asked.stream))
            if opened is None:
                served.tries.append(turn.ended(error="aborted", message="The caller hung up before the answer."))
                return None
            if breaker is not None:
                breaker.answered()
            await self._passed_on(served, turn, name, opened, caller)
            return None
        except SlotFailed as failed:
            if breaker is not None:
                breaker.failed()
            served.tries.append(turn.ended(error=failed.kind, message=str(failed)))
            return failed
        finally:
            self._counters.places[place] -= 1
            if breaker is not None:
                breaker.ended()
            if opened is not None:
                opened.close()

    async def _passed_on(self, served: Served, turn: Try, arm: Arm, opened: Opened, caller: Caller) -> None:
        """The answer, to the caller and into a try. A stream that breaks off ends with an error event."""
        if opened.events is None:
            await caller.reply(opened.status, opened.content_type, opened.body, served, arm)
            refused = str(opened.status) if opened.status != 200 else ""
            served.tries.append(turn.ended([opened.body], error=refused))
            return
        pieces, broke_off, complete = [opened.body], "", False

        async def events(following: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
            nonlocal broke_off, complete
            yield opened.body
            try:
                async for piece in following:
                    pieces.append(piece)
                    yield piece
            except StreamBroken as broken:  # clients of OpenAI raise what such an event says
                broke_off = str(broken)
                yield b"data: " + msgspec.json.encode(error_body(502, broke_off)) + b"\n\n"
            complete = True

        await caller.reply(200, opened.content_type, events(opened.events), served, arm)
        error = "stream_broken" if broke_off else ""
        served.tries.append(turn.ended(pieces, error=error, message=broke_off, aborted=not complete and not error))


def _try_of(slot: ServedSlot, arm: Arm) -> Try:
    return Try(arm, slot.digest, slot.name, time.time_ns())
