"""A suite: the held-out items that champion and candidate both answer, and the digest that pins it."""

from typing import Literal

from pipeline.core.conversation import TOOLS, spoken
from pipeline.core.storage import Record, digest_json
from pipeline.recipe.rewards import VerifierKind
from pipeline.serving.inference import Messages


class Item(Record):
    """One prompt with its reference answer. Items of one `cluster` succeed and fail together, so standard errors do not
    count them as independent. `slice` groups items for the report, which never gates on a slice."""

    id: str
    cluster: str
    messages: Messages
    reference: str
    slice: str
    check: VerifierKind | Literal["none"] = "math"
    """How an answer is compared with the reference; none: it has none."""
    user_id: str | None = None
    """Whose question it is, as labels name the person; None of an item without a user."""
    salt: str = ""
    """Random, of a person's item: so no digest that outlives the item confirms a guess at its text."""


class Suite(Record):
    """The items of one evaluation, in a fixed order."""

    name: str
    items: tuple[Item, ...] = ()
    system: str = ""
    """System prompt before each item that has none of its own."""
    instruction: str = ""
    """Text after each item's last message."""
    generation: str = ""
    """Digest of all items as they were frozen, of a suite from traces: its items may become fewer."""

    def identity(self) -> str:
        """What training data is cleaned of: the generation, else the items."""
        return self.generation or self.digest()

    def digest(self) -> str:
        """sha256 of the content, whatever the order of the items."""
        content = [item.model_dump(exclude={"user_id"}) for item in sorted(self.items, key=lambda item: item.id)]
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
