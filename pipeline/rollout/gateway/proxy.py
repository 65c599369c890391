"""One request through the gateway. Intention to treat: where the canary fails before its first byte the champion
answers, and the failed try is recorded as the canary's."""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from pipeline.rollout.gateway.asked import BadRequest, CallerRequest, Shortage, limited_body
from pipeline.rollout.gateway.dialects import DIALECTS, Dialect
from pipeline.rollout.gateway.process import GatewaySettings
from pipeline.rollout.gateway.spans import MOST_WAITING, Recorder, Served, Try
from pipeline.rollout.gateway.split import ServedSlot, SlotTable, SplitWatch
from pipeline.rollout.gateway.upstream import Opened, SlotFailed, StreamBroken, Upstream
from pipeline.rollout.router import Arm, route

FAILURES, OPEN_S = 3, 1.0
FORWARDED = ("authorization", "x-api-key", "anthropic-version", "anthropic-beta")
"""Headers of a caller that the slot gets."""


class Breaker:
    """Circuit breaker of the canary: opens after three failures in a row, then lets one request try each second."""

    def __init__(self) -> None:
        self._failures, self._next_try = 0, 0.0

    def lets(self) -> bool:
        """Whether this request may try."""
        if self._failures < FAILURES:
            return True
        if time.monotonic() < self._next_try:
            return False
        self._next_try = time.monotonic() + OPEN_S
        return True

    def saw(self, failed: bool) -> None:
        self._failures, self._next_try = self._failures + 1 if failed else 0, time.monotonic() + OPEN_S


class _Caller(Request):
    """A caller's request and connection."""

    def forwarded(self, trace_id: str) -> dict[str, str]:
        own = {"Content-Type": "application/json", "traceparent": f"00-{trace_id}-{trace_id[:16]}-01"}
        return own | {name.title(): self.headers[name] for name in FORWARDED if name in self.headers}

    async def gone(self) -> None:
        """Returns once the caller has hung up."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    async def reply(self, opened: Opened, body: bytes | AsyncIterator[bytes], trace_id: str) -> None:
        """Send an answer; a stream ends early where the caller hangs up."""
        headers = {**opened.headers, **_identified(trace_id)}
        if isinstance(body, bytes):
            await self._respond(Response(body, opened.status, headers))
        else:
            headers |= {"cache-control": "no-cache", "x-accel-buffering": "no"}
            await self._respond(StreamingResponse(body, 200, headers))

    async def refuse(self, failed: SlotFailed, trace_id: str, dialect: Dialect) -> None:
        """Say why there is no answer: in the server's own words, where one refused."""
        headers = _identified(trace_id)
        if (refusal := failed.refusal) is not None:
            await self._respond(Response(refusal.body, refusal.status, {**refusal.headers, **headers}))
        else:
            await self._respond(JSONResponse(dialect.error(failed.status, str(failed)), failed.status, headers))

    async def _respond(self, response: Response) -> None:
        await response(self.scope, self.receive, self._send)


def _identified(trace_id: str) -> dict[str, str]:
    """The last two are where OpenAI's and Anthropic's clients look for it."""
    return {"x-trace-id": trace_id, "x-request-id": trace_id, "request-id": trace_id}


class Proxy:
    def __init__(self, settings: GatewaySettings, watch: SplitWatch, recorder: Recorder) -> None:
        self._trusted, self._watch, self._recorder = settings.traffic.trust_user_header, watch, recorder
        self._breaker, self.table = Breaker(), SlotTable()
        self.upstream = Upstream()
        self.served, self.in_flight = 0, Counter[str]()
        """Answers that callers got; requests that a slot is answering, by digest."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller = _Caller(scope, receive, send)
        dialect = DIALECTS[scope["path"]]
        asked = CallerRequest(dialect, await limited_body(caller), dict(scope["headers"]), self._trusted)
        served, slots = self._routed(asked)
        why = ""  # an error of ours: it is logged by the server
        try:
            if sum(self.in_flight.values()) >= self.upstream.limit:
                raise Shortage(f"answers {self.upstream.limit} requests at once, and no more.")
            if len(self._recorder.waiting) >= MOST_WAITING:
                raise Shortage("has too many requests that wait for its disk.")
            await self._answer(served, slots, caller)
        except Shortage as short:
            why, short.headers = short.detail, {**(short.headers or {}), **_identified(served.trace_id)}
            raise
        finally:
            if not dialect.is_count:
                self.served += 1
                if not served.tries:
                    served.refused(why)
                self._recorder.add(served)

    def _routed(self, asked: CallerRequest) -> tuple[Served, dict[Arm, list[ServedSlot]]]:
        """Where a request goes: the canary's slots where it is to answer, then the champion's."""
        split, trace_id = self._watch.in_force(), os.urandom(16).hex()
        unit, kind = (asked.unit, asked.unit_kind) if asked.unit else (trace_id, "request")
        served = Served(asked, trace_id, unit=unit, unit_kind=kind)
        if split is None:
            if len(self.table.slots) != 1:
                raise BadRequest(503, "No split says which model is the champion. Apply one, or load a single slot.")
            return served, {"champion": list(self.table.slots)}
        served.arm = route(split, unit)
        served.rollout, served.epoch, served.weight = split.rollout, split.epoch, split.canary_weight
        champion = self.table.slots_of(split.champion.digest)
        to_canary = split.canary and served.arm == "canary" and not asked.dialect.is_count
        canary = self.table.slots_of(split.canary.digest) if split.canary and to_canary else []
        if not champion:
            raise BadRequest(503, f"No slot serves the champion, model {split.champion.digest[:12]}. Load it.")
        return served, {"canary": canary, "champion": champion}

    async def _answer(self, served: Served, slots: dict[Arm, list[ServedSlot]], caller: _Caller) -> None:
        failed: SlotFailed | None = None
        for arm, each in slots.items():
            if arm == "canary" and each and not self._breaker.lets():
                continue
            for slot in each:
                failed = await self._ask(served, slot, arm, caller)
                if failed is None or failed.refusal is not None:
                    break
            if arm == "canary" and each:
                self._breaker.saw(failed is not None)
            if each and failed is None:
                return
        assert failed is not None, "the champion was asked"
        await caller.refuse(failed, served.trace_id, served.asked.dialect)

    async def _ask(self, served: Served, slot: ServedSlot, arm: Arm, caller: _Caller) -> SlotFailed | None:
        """Ask one slot and pass its answer on; why it gave none, before a byte of it was passed on."""
        turn, opened = Try(arm, slot.digest, slot.name, time.time_ns()), None
        self.in_flight[slot.digest] += 1
        try:
            opened = await self._opened(served, slot, caller)
            if opened is None:
                served.tries.append(turn.ended(error="aborted", message="The caller hung up before the answer."))
                return None
            await _pass_on(served, turn, opened, caller)
            return None
        except SlotFailed as failed:
            served.tries.append(turn.ended(error=failed.kind, message=str(failed)))
            return failed
        finally:
            self.in_flight[slot.digest] -= 1
            if opened is not None:
                opened.close()

    async def _opened(self, served: Served, slot: ServedSlot, caller: _Caller) -> Opened | None:
        """The slot's answer; None where the caller hangs up before it is there, which cancels it."""
        headers = caller.forwarded(served.trace_id)
        answer = asyncio.ensure_future(self.upstream.ask(slot, served.asked, headers))
        gone = asyncio.ensure_future(caller.gone())
        try:
            await asyncio.wait((answer, gone), return_when=asyncio.FIRST_COMPLETED)
            return await answer if answer.done() else None
        finally:
            answer.cancel()
            gone.cancel()


async def _pass_on(served: Served, turn: Try, opened: Opened, caller: _Caller) -> None:
    """The answer, to the caller and into a try. A stream that breaks off ends with an error event."""
    if opened.events is None:
        await caller.reply(opened, opened.body, served.trace_id)
        served.tries.append(turn.ended([opened.body], error=str(opened.status) if opened.status != 200 else ""))
        return
    pieces, broke_off, complete = [opened.body], "", False

    async def events(following: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        nonlocal broke_off, complete
        yield opened.body
        try:
            async for piece in following:
                pieces.append(piece)
                yield piece
        except StreamBroken as broken:
            broke_off = str(broken)
            yield served.asked.dialect.failure(broke_off)
        complete = True

    await caller.reply(opened, events(opened.events), served.trace_id)
    error = "stream_broken" if broke_off else ""
    served.tries.append(turn.ended(pieces, error=error, message=broke_off, aborted=not complete and not error))
