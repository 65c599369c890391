"""Which model calls of a trace are answers: the last one for each message of a user, without helpers.

Chat applications make further calls in a chat's trace, for its title, tags, follow-up questions, or to guard it. They
are known by the names that such calls have, or the recipe names the calls that answer (`traces.answers`).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import xxhash

from pipeline.recipe.traces import Answers
from pipeline.traces.arrow import pc

_WORDS = (
    "titles?|tags?|emojis?|follow[ _-]?ups?|autocomplet(?:e|ion)|quer(?:y|ies)[ _-]generation|"
    "image[ _-]prompt[ _-]generation|guard|guardrails?|moderations?"
)
HELPER = (
    rf"(?i:(?:^|[^a-z])(?:{_WORDS})(?:[^a-z]|$))|[a-z](?:Title|Tags?|FollowUps?|Guardrails?|Moderation)(?:[^a-z]|$)"
)
"""RE2 of the names of helpers."""


def helpers(names: pa.Array, answers: Answers) -> Any:
    """Which calls are none, by their names."""
    if answers == "last":
        return pa.array(np.zeros(len(names), bool))
    if answers == "each":
        return pc.fill_null(pc.match_substring_regex(names, HELPER), False)
    return pc.invert(pc.is_in(names, pa.array(answers, pa.string())))


def turns(messages: pa.ListArray, answers: Answers) -> Any:
    """What of a trace a call belongs to: equal for the calls of which the last one is the answer. A hash of the user's
    last message and of its place among theirs."""
    if answers == "last":
        return pa.repeat(pa.scalar(0, pa.uint64()), len(messages))
    said, parents = messages.flatten(), pc.list_parent_indices(messages).to_numpy()
    asked = np.flatnonzero(pc.equal(said.field("role"), "user").to_numpy(zero_copy_only=False))
    counts = np.bincount(parents[asked], minlength=len(messages)).tolist()
    last = np.full(len(messages), -1)
    last[parents[asked]] = asked  # the later one overwrites
    texts: list[bytes | None] = said.field("content").cast(pa.binary()).take(pa.array(last, mask=last < 0)).to_pylist()
    hashed = [xxhash.xxh3_64_intdigest(text or b"", seed=count) for text, count in zip(texts, counts, strict=True)]
    return pa.array(hashed, pa.uint64())
