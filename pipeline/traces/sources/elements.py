"""The elements of a file that is one JSON array, in bounded memory: an export of type JSON is written so.

Owns finding where an element ends. Refuses to decode one: between brackets and texts it looks at nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import chain

from pipeline.traces.sources.compression import CHUNK, ENDINGS, Broken

MARK = b"\xef\xbb\xbf"
"""Some programs begin a file of UTF-8 with it."""
# A whole text, the beginning of one that goes on in the next chunk, or a bracket.
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|"|[\[\]{}]', re.DOTALL)


def may_be_array(name: str) -> bool:
    """Whether a file of this name may be one array: JSON lines are what their name says."""
    bare = next((name.removesuffix(end) for end in ENDINGS if name.endswith(end)), name)
    return not bare.endswith((".jsonl", ".ndjson"))


def is_array(chunks: Iterator[bytes]) -> tuple[bool, Iterator[bytes]]:
    """Whether the content begins as a JSON array, and all of it, less its byte order mark."""
    head, rest = b"", chunks
    try:
        while len(head.removeprefix(MARK).lstrip()) < len(MARK) and len(head) <= CHUNK:  # blanks beyond are no array's
            head += next(chunks)
    except StopIteration:
        pass
    except Broken as error:
        rest = _broken(error)
    head = head.removeprefix(MARK)
    return head.lstrip().startswith(b"["), chain([head] if head else [], rest)


def _broken(error: Broken) -> Iterator[bytes]:
    yield from ()
    raise error


def elements(chunks: Iterator[bytes], max_size: int) -> Iterator[bytes | None]:
    """The elements of the array that `chunks` are, as they stand; None for one of over `max_size` bytes.

    What stands between two elements and is neither blank nor a comma is an element too: its reader refuses it. Raises
    Broken when the array or the file breaks off.
    """
    held = b""
    depth = at = begin = 0  # `at`: how far `held` was looked at; `begin`: where the element or the gap before it begins
    over = ended = False
    for chunk in chunks:
        held += chunk
        while not ended and (token := _TOKEN.search(held, at)):
            start, at = token.span()
            mark = held[start]
            if mark == ord('"'):
                if token.end() == start + 1:  # it goes on
                    at = start
                    break
                continue
            depth += 1 if mark in b"[{" else -1
            if mark in b"[{" and depth <= 2:
                if depth == 2 and (gap := held[begin:start].strip(b" \t\r\n,")):
                    yield gap
                begin = start if depth == 2 else at
            elif depth == 1:
                yield None if over or at - begin > max_size else held[begin:at]
                begin, over = at, False
            elif depth == 0:
                if gap := held[begin:start].strip(b" \t\r\n,"):
                    yield gap
                begin, ended = at, True
        else:
            at = len(held)
        if depth > 1 and (over or len(held) - begin > max_size):
            # Of an element that is too long only the text that it stands in is held, and of that only how it goes on.
            tail = held[at:]
            escaped = (len(tail) - len(tail.rstrip(b"\\"))) % 2
            held, over = b'"' + b"\\" * escaped if tail else b"", True
            at = begin = 0
        else:
            held, at, begin = held[begin:], at - begin, 0
        if (depth == 1 or ended) and len(held) > max_size:
            yield None
            held, at = b"", 0
    if not ended:
        raise Broken("the JSON array breaks off")
    if rest := held[begin:].strip():
        yield rest
