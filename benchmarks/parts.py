"""The command line of a benchmark: `--small` for all, and the parts of those that have some."""

import argparse
import json
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def options(about: str | None, small: str) -> argparse.ArgumentParser:
    """`small`: what is less then."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help=small)
    return parser


def chosen(parser: argparse.ArgumentParser, parts: Sequence[str]) -> argparse.Namespace:
    """What was asked for. Of no named parts all of them are meant."""
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(parts)}")
    asked = parser.parse_args()
    if unknown := set(asked.parts) - set(parts):
        parser.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(parts)}")
    asked.parts = asked.parts or list(parts)
    return asked


def measure(parts: Mapping[str, Callable[[], Mapping[str, Any]]]) -> None:
    """One after the other; the figures of all are the last line."""
    figures: dict[str, Any] = {}
    for name, part in parts.items():
        started = time.monotonic()
        figures |= part()
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    print(json.dumps({name: round(value, 4) if isinstance(value, float) else value for name, value in figures.items()}))
