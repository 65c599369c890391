"""The lines that a training process prints for people; the launcher passes on what starts like them."""

from __future__ import annotations

import os

MARK = "training: "


def say(message: str) -> None:
    """One progress line, of the first rank."""
    if os.environ.get("RANK", "0") == "0":
        print(f"{MARK}{message}", flush=True)
