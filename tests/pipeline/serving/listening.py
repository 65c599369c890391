"""The process behind a server's address."""

from typing import Any
from urllib.parse import urlsplit

import psutil


def listening(url: str) -> int:
    """Its pid."""
    listeners: list[Any] = [each for each in psutil.net_connections("tcp4") if each.status == "LISTEN"]
    (pid,) = {each.pid for each in listeners if each.laddr.port == urlsplit(url).port}
    assert pid is not None
    return pid
