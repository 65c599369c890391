"""An OpenAI-compatible server that answers at once: `python -m benchmarks.gateway_slot PORT NAME PARENT`.

It costs next to nothing, so that what is measured in front of it is the gateway.
"""

import asyncio
import json
import signal
import socket
import sys
from typing import Any

from pipeline.core.processes import die_with_parent


def responses(name: str) -> tuple[bytes, bytes]:
    """A whole answer and a streamed one."""
    text = "The answer is 42."
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 12, "completion_tokens": 6}
    body = json.dumps({"id": "c", "model": name, "choices": [choice], "usage": usage}).encode()
    whole = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body
    deltas = [{"role": "assistant", "content": ""}, *({"content": f"{word} "} for word in text.split()), {}]
    events = [{"id": "c", "model": name, "choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    events[-1]["choices"] = [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    lines = b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n" % len(lines)
    return whole, head + lines


class Slot(asyncio.Protocol):
    """One connection."""

    def __init__(self, whole: bytes, streamed: bytes) -> None:
        self._whole, self._streamed = whole, streamed
        self._received = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while (end := self._received.find(b"\r\n\r\n")) >= 0:
            head = self._received[:end].lower()
            at = head.find(b"content-length:")
            size = int(head[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0
            if len(self._received) < end + 4 + size:
                return
            body, self._received = self._received[end + 4 : end + 4 + size], self._received[end + 4 + size :]
            self._transport.write(self._streamed if b'"stream":true' in body.replace(b" ", b"") else self._whole)


async def serve(port: int, name: str) -> None:
    whole, streamed = responses(name)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    server = await asyncio.get_running_loop().create_server(lambda: Slot(whole, streamed), sock=listener)
    print("ready", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    die_with_parent(signal.SIGKILL, int(sys.argv[3]))
    import uvloop

    uvloop.run(serve(int(sys.argv[1]), sys.argv[2]))
