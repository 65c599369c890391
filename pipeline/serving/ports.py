"""Ports of 127.0.0.1 for servers that are being started."""

from __future__ import annotations

import socket


def held_port() -> socket.socket:
    """A free port, held by a socket that does not listen until it is closed.

    The kernel gives it to nobody else; who binds it by its number with SO_REUSEADDR, as servers do, may listen there.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(("127.0.0.1", 0))
    return held
