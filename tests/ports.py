"""Ports of 127.0.0.1 that stay ours also while nobody listens on them."""

import socket

LOOPBACK = "127.0.0.1"


def held_port() -> socket.socket:
    """A bound socket that does not listen: who connects to its port is refused, and the kernel gives it to nobody who
    asks for a free one. Who binds it by number with SO_REUSEADDR, as servers do, may listen there."""
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind((LOOPBACK, 0))
    return held
