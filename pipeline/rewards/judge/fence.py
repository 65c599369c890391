"""Untrusted text made fit to stand in a prompt: what is hidden becomes visible, and special tokens lose their brackets.

A special token is known by its shape, whatever model's it is: a word or bars in brackets. The text stands as a JSON
string, which has no line of its own, inside a fence whose mark it cannot contain: the mark is derived from the text's
own digest. An attack stays legible, since it is part of the answer's quality.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable

# Controls but tab and newline, lone surrogates, line separators, bidirectional controls, and Unicode's
# Default_Ignorable_Code_Point (zero-width, fillers, variation selectors, tag characters).
_HIDDEN = re.compile(
    "[\x01-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
)
_TOKEN = re.compile(  # every part is bounded, so that the time is linear
    r"<{1,4}[^\s<>]{1,64}>{1,4}|<[|\uff5c][^<>\n]{1,64}[|\uff5c]>"  # <|im_start|>, </s>, <<SYS>>, with wide bars
    r"|\[/?[A-Za-z_]{0,32}[A-Z]{2}[A-Z_]{0,32}\]|\[\|[^\[\]\n]{1,64}\|\]"  # [INST], [gMASK], [|assistant|]
    r"|[\[\]][~!]{1,2}\w{0,8}[\[\]]|[\[\]]\w{0,8}~[\[\]]"  # ]~b], [e~[
    r"|\u25c1[^\s\u25c1\u25b7]{1,64}\u25b7"  # between triangles
)
_TAME = str.maketrans("<>[]\u25c1\u25b7", "\u2039\u203a\u27e6\u27e7\u2039\u203a")

MARK_CHARS = 16


def visible(text: str) -> str:
    """`text` as a person would have to see it: hidden characters as `[U+200B]`, special tokens in other brackets."""
    text = text.replace("\r\n", "\n").replace("\0", "")
    text = _HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)
    return _TOKEN.sub(
        lambda match: match[0].translate(_TAME) if re.search(r"[\w|\uff5c~]", match[0]) else match[0], text
    )


def mark_for(texts: Iterable[str]) -> str:
    """A mark that stands in none of `texts`; always the same one for the same texts."""
    whole = "\0".join(texts)
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
    while digest[:MARK_CHARS] in whole:
        digest = hashlib.sha256(digest.encode()).hexdigest()
    return digest[:MARK_CHARS]


def fenced(mark: str, name: str, text: str) -> str:
    """`text` as a JSON string between two lines that only this prompt has."""
    return f"=== {mark} BEGIN {name} ===\n{json.dumps(text, ensure_ascii=False)}\n=== {mark} END {name} ==="
