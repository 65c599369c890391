"""A suite: the held-out items that champion and candidate both answer, and the digest that pins it.

Refuses to make items, to sample and to grade. A cluster is a group of items whose outcomes hang together, so that
standard errors may not count them as independent.
"""

from __future__ import annotations

from pipeline.recipe.rewards import VerifierKind
from pipeline.serving.inference import Messages
from pipeline.storage import Record, digest_json


class Item(Record):
    """One prompt with its reference answer. `slice` groups items for the report, which never gates on a slice."""

    id: str
    cluster: str
    messages: Messages
    reference: str
    slice: str
    check: VerifierKind = "math"
    """How an answer is compared with the reference."""


class Suite(Record):
    """The items of one evaluation, in a fixed order."""

    name: str
    items: tuple[Item, ...]
    system: str = ""
    """System prompt before each item that has none of its own."""
    instruction: str = ""
    """Text after each item's last message."""

    def digest(self) -> str:
        """sha256 of the content, whatever the order of the items."""
        content = [item.model_dump() for item in sorted(self.items, key=lambda item: item.id)]
        return digest_json([self.name, self.system, self.instruction, *content])

    def messages(self, item: Item) -> Messages:
        """What a model is asked."""
        *before, last = item.messages
        asked = [*before, {**last, "content": last["content"] + self.instruction}]
        if self.system and asked[0]["role"] != "system":
            return [{"role": "system", "content": self.system}, *asked]
        return asked

    def texts(self) -> tuple[str, ...]:
        """The items' prompts, which training data may hold none of. Prompts alone: a reference may be a bare number,
        which identifies nothing."""
        return tuple("\n".join(message["content"] for message in item.messages) for item in self.items)

    @property
    def clusters(self) -> int:
        return len({item.cluster for item in self.items})
