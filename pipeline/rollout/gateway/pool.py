"""Slots on servers that others keep. One that holds the champion takes the candidate as an adapter, once it is asked
for, and gives up those of models that nobody wants any more."""

from collections.abc import Callable, Collection, Mapping, Sequence

from pipeline.core.storage import ModelRef
from pipeline.rollout.gateway.split import ServedSlot, listed_slots
from pipeline.serving.adapters import ServedAdapter, load_adapter, unload_adapter
from pipeline.serving.endpoint import HEAD, served_name


class PooledSlots:
    """`location`: of an adapter, as the servers see it."""

    def __init__(self, model_name: str, urls: Sequence[str], location: Callable[[ModelRef], str]) -> None:
        self._model_name, self._urls, self._location = model_name, urls, location

    def slot_of(self, digest: str, wanted: Collection[str], adapters: Mapping[str, ServedAdapter]) -> ServedSlot | None:
        """None where no server holds the model and none holds the base of its adapter. Raises ValueError where a server
        does not take the adapter, OSError where it cannot be asked."""
        table = listed_slots(self._model_name, self._urls)
        each = adapters.get(digest)
        holding = {slot.url for slot in table.slots_of(digest)}
        bases = [] if each is None else [base for base in table.slots_of(each.base) if not base.adapter]
        lacking = [base for base in bases if base.url not in holding]
        name, heads = served_name(self._model_name, digest), {model[:HEAD] for model in wanted}
        for base in lacking:
            for other in table.slots:
                if (other.url, other.adapter) == (base.url, True) and other.digest not in heads:
                    unload_adapter(other.url, other.name)
            load_adapter(base.url, name, self._location(adapters[digest].adapter))
        loaded = ServedSlot(digest=digest, url=lacking[0].url, name=name) if lacking else None
        return table.slot_of(digest) or loaded
