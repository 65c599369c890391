"""The slots behind the gateway: which model each serves, under which name, and where.

A slot is no role: a split names models by digest, and the slot of a digest answers for it. Its name holds the first 12
digits of the digest, so a slot is looked up by those.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from pydantic import model_validator

from pipeline.core import layout
from pipeline.core.storage import Record, Store
from pipeline.serving.served_names import HEAD, digest_head


class ServedSlot(Record):
    """One model on an OpenAI-compatible server."""

    digest: str
    """Of the model, or its first 12 digits where the server's name for it says no more."""
    url: str
    """Root of the server's API, e.g. `http://127.0.0.1:8001/v1`."""
    name: str
    """What the server calls the model: `<model>@<digest12>`."""

    @property
    def head(self) -> str:
        return self.digest[:HEAD]


class SlotTable(Record):
    """All slots; no two hold one model, since their arms could not be told apart."""

    slots: tuple[ServedSlot, ...]

    @model_validator(mode="after")
    def _one_model_each(self) -> Self:
        heads = [slot.head for slot in self.slots]
        twice = sorted({head for head in heads if heads.count(head) > 1})
        if twice:
            raise ValueError(f"Two slots hold model {twice[0]}. Give one of them another model.")
        return self

    def slot_of(self, digest: str) -> ServedSlot | None:
        return next((slot for slot in self.slots if slot.head == digest[:HEAD]), None)

    def place_of(self, slot: ServedSlot) -> int:
        """Its position here; 0 for one that an earlier table held."""
        return next((place for place, each in enumerate(self.slots) if each.digest == slot.digest), 0)


def write_slots(store: Store, model_name: str, slots: Sequence[ServedSlot]) -> None:
    """Tell the gateway where each model is served. A split that names another one is not put into force."""
    store.write(layout.slot_file(model_name), SlotTable(slots=tuple(slots)))


def read_slots(store: Store, model_name: str) -> SlotTable | None:
    """None where no slots were written. Raises ValueError for a file that can't be read."""
    return store.read(layout.slot_file(model_name), SlotTable)


class ListedSlots(NamedTuple):
    """What servers say that they serve."""

    table: SlotTable
    fault: str = ""
    """Which servers are no slot of their own, since an earlier one holds the same model."""


def slots_of_names(model_name: str, names: Mapping[str, Sequence[str]]) -> ListedSlots:
    """The slots of servers by their root URL, from the names that each says it serves. A server without one of this
    model's names is no slot. Of two that hold one model the first is its slot: users have an answer all the same."""
    slots: dict[str, ServedSlot] = {}
    faults: list[str] = []
    for url, each in names.items():
        head = digest_head(each[0], model_name) if each else ""
        if head in slots:
            faults.append(f"{slots[head].url} and {url} both hold model {head}. Load another one into one of them.")
        elif head:
            slots[head] = ServedSlot(digest=head, url=url, name=each[0])
    return ListedSlots(SlotTable(slots=tuple(slots.values())), " ".join(faults))
