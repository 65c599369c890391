"""What masking hostile texts costs by their length: `python -m benchmarks.pii_cost [--chars N]`.

Each family repeats what a pattern begins at, or what a validator takes longest for. `operations` are the interpreter's
instructions for each character, which no load of the machine changes; `growth` is what they come to for four times the
text, by what a linear cost would be: 1.0 is linear, 4.0 quadratic. RE2, below them, is linear by its construction, and
`us` is all of it together. The last line is JSON: the worst `growth`, `operations` and `us`, with their families.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from types import FrameType
from typing import Any

from pipeline.traces.pii import Unmaskable, mask

CHARS = 4_000
TIMES = 4


def _digits(separators: str) -> str:
    chance = random.Random(7)
    return "".join(f"{chance.randrange(10)}{chance.choice(separators)}" for _ in range(500))


FAMILIES = {
    "spaced digits": _digits(" "),
    "digits with dashes": _digits("-"),
    "digits in groups": _digits(" -.()"),
    "digits of 13": "".join(f"{number:013} " for number in range(4 * 10**12, 4 * 10**12 + 70)),
    "equal digits": "4" * 500,
    "country codes": "+1 (1) 11 ",
    "double zeros": "001 11-11 ",
    "trunk zeros": "0111 1111 ",
    "words of phones": "phone number is: ",
    "phones that end early": "phone 1 1 1 1 1 1 ",
    "account numbers": "DE11 AAAA AAAA 1",
    "addresses of four": "1.1.1.1.1",
    "addresses of eight": "abc:abc:abc:",
    "names before a sign": "a.a'a.a",
    "signs alone": "a@a.",
    "keys": "sk-a aws secret ",
    "begun keys": "-----BEGIN PRIVATE KEY",
    "identifiers": "01234567-0123-0123-0123-0123456789ab ",
    "wide digits": "\uff14\uff11 ",
    "escapes": "\\u0034\\u0020",
    "escapes of escapes": "\\\\u005cu0034",
    "invisible": "4\u200b1\u200b ",
}


def text_of(family: str, chars: int) -> str:
    unit = FAMILIES[family]
    return (unit * (chars // len(unit) + 1))[:chars]


def operations(text: str) -> int:
    """Instructions of Python that masking a text takes."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        _masked(text)
    finally:
        sys.settrace(before)
    return count


def growth(family: str, chars: int) -> tuple[float, float]:
    """Operations a character, and what they grow by beyond the text."""
    few, many = operations(text_of(family, chars)), operations(text_of(family, chars * TIMES))
    return many / (chars * TIMES), many / few / TIMES


def microseconds(family: str, chars: int) -> float:
    """A character, the best of three."""
    text, best = text_of(family, chars), float("inf")
    for _ in range(3):
        began = time.perf_counter()
        _masked(text)
        best = min(best, time.perf_counter() - began)
    return best / chars * 1e6


def _masked(text: str) -> None:
    try:
        mask(text)
    except Unmaskable:  # a text that is refused is done with
        return


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--chars", type=int, default=CHARS, help=f"of the shorter text; the other has {TIMES} times")
    chosen = options.parse_args()
    rows = {family: (*growth(family, chosen.chars), microseconds(family, 100_000)) for family in FAMILIES}
    for family, (each, grows, us) in rows.items():
        print(f"{family:<22} operations {each:8.1f}  growth {grows:5.2f}  us {us:7.3f}")
    worst = {
        name: max((row[at], family) for family, row in rows.items())
        for at, name in enumerate(("operations", "growth", "us"))
    }
    print(json.dumps(worst))


if __name__ == "__main__":
    main()
