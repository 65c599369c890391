"""Untrusted text made fit to stand in a prompt: what is hidden becomes visible, what has power over a reader loses it.

The fence around it is a mark that the text cannot contain, because it is derived from the text's own digest.
Refuses to judge the text: an attack stays legible, since it is part of the answer's quality.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable

# Controls but tab and newline, lone surrogates, line separators, bidirectional controls, and Unicode's
# Default_Ignorable_Code_Point (zero-width, fillers, variation selectors, tag characters).
_HIDDEN = re.compile(
    "[\x01-\x08\x0b-\x1f\x7f-\x9f\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufffb\U0001bca0-\U0001bca3\U0001d173-\U0001d17a"
    "\U000e0000-\U000e0fff\ud800-\udfff]"
)
# What chat templates use as role tags: <|im_start|> (also with fullwidth bars), </s>, [INST], <start_of_turn>.
# Code keeps its `|>` and `<s`: a tokenizer takes a tag only as a whole.
_TAG = re.compile(
    r"<[|\uff5c][^<>\n]{1,64}[|\uff5c]>|</?(?:s|bos|eos|pad|unk|user|human|system|assistant|model|think|tool_call)>"
    r"|<(?:start|end)_of_turn>"
    r"|\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]|<</?SYS>>",
    re.IGNORECASE,
)
_TAME = str.maketrans("<>[]", "\u2039\u203a\u27e6\u27e7")
_MARKDOWN = re.compile(r"`{3,}|~{3,}")
_STILL = str.maketrans("`~", "\u02cb\u02dc")

MARK_CHARS = 16


def visible(text: str) -> str:
    """`text` as a person would have to see it: hidden characters as `[U+200B]`, role tags and code fences defused."""
    text = text.replace("\r\n", "\n").replace("\0", "")
    text = _HIDDEN.sub(lambda match: f"[U+{ord(match[0]):04X}]", text)
    text = _TAG.sub(lambda match: match[0].translate(_TAME), text)
    return _MARKDOWN.sub(lambda match: match[0].translate(_STILL), text)


def mark_for(texts: Iterable[str]) -> str:
    """A mark that stands in none of `texts`; always the same one for the same texts."""
    whole = "\0".join(texts)
    digest = hashlib.sha256(whole.encode("utf-8", "surrogatepass")).hexdigest()
    while digest[:MARK_CHARS] in whole:
        digest = hashlib.sha256(digest.encode()).hexdigest()
    return digest[:MARK_CHARS]


def fenced(mark: str, name: str, text: str) -> str:
    """`text` between two lines that only this prompt has."""
    return f"=== {mark} BEGIN {name} ===\n{text}\n=== {mark} END {name} ==="
