"""A suite: the held-out items that champion and candidate both answer, and the digest that pins it.

Refuses to make items, to sample and to grade. A cluster is a group of items whose outcomes hang together, so that
standard errors may not count them as independent.
"""

from __future__ import annotations

import hashlib
from typing import Any, Literal

from pydantic import Field

from pipeline.core.conversation import TOOLS, spoken
from pipeline.core.storage import Record, digest_json
from pipeline.recipe.rewards import VerifierKind
from pipeline.serving.inference import Messages


class AnswerFormat(Record):
    """The form that an answer must have, whatever it says: it matches a regular expression as a whole (RE2, which takes
    linear time), or it holds JSON that fits a schema, as the verifier `json_schema` reads it."""

    kind: Literal["regex", "json_schema"]
    pattern: str


class Item(Record):
    """One prompt with its reference answer. `slice` groups items for the report, which never gates on a slice."""

    id: str
    cluster: str
    messages: Messages
    reference: str
    slice: str
    check: VerifierKind | Literal["none"] = "math"
    """How an answer is compared with the reference; none: it has none."""
    user_id: str | None = None
    """Whose question it is, as labels name the person; None where it is nobody's."""
    salt: str = ""
    """Random, of a person's item: without it no digest of the item confirms a guess at its text."""
    format: AnswerFormat | None = Field(default=None, exclude_if=lambda value: value is None)
    """None: an answer may have any form."""
    leaf: str = Field(default="", exclude=True)
    """Of an item whose text was erased from a bundle: the digest of the line that it was."""

    def digest(self) -> str:
        """sha256 of the item's line, also once its text is erased."""
        return self.leaf or hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def content(self) -> Any:
        """What a suite's digest is made of; of a person's item its digest, which outlives its text."""
        return self.digest() if self.salt or self.leaf else self.model_dump(exclude={"user_id", "salt"})


class Suite(Record):
    """The items of one evaluation, in a fixed order."""

    name: str
    items: tuple[Item, ...]
    system: str = ""
    """System prompt before each item that has none of its own."""
    instruction: str = ""
    """Text after each item's last message."""
    generation: str = ""
    """Digest of the list of all items as they were frozen, of a suite from traces: its items may become fewer."""

    def identity(self) -> str:
        """What training data is cleaned of: the generation, whoever was forgotten since, else the items as they were
        given."""
        return self.generation or self.digest()

    def digest(self) -> str:
        """sha256 of the content, whatever the order of the items."""
        content = [item.content() for item in sorted(self.items, key=lambda item: item.id)]
        return digest_json([self.name, self.system, self.instruction, *content])

    def messages(self, item: Item) -> Messages:
        """What a model is asked. The instruction follows what the user said last, not a tool's result."""
        asked = [dict(message) for message in item.messages]
        last = next((message for message in reversed(asked) if message["role"] == "user"), asked[-1])
        last["content"] += self.instruction
        if self.system and all(message["role"] != "system" for message in asked[:2]):
            offered = 1 if asked[0]["role"] == TOOLS else 0
            return [*asked[:offered], {"role": "system", "content": self.system}, *asked[offered:]]
        return asked

    def texts(self) -> tuple[str, ...]:
        """The items' prompts, which training data may hold none of. Prompts alone: a reference may be a bare number,
        which identifies nothing, and so do tools, which every request of an application offers."""
        return tuple("\n".join(message["content"] for message in spoken(item.messages)) for item in self.items)

    @property
    def clusters(self) -> int:
        return len({item.cluster for item in self.items})
