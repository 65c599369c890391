"""What the gateway routes by, in two files: the slots with the model that each serves, and the split; and the rollout's
port to them. A split that is torn, of an older epoch, or that names a model in no slot, leaves in force what was."""

import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Record, Store, locked
from pipeline.rollout.gateway.process import running_address
from pipeline.rollout.router import NO_ROLLOUT, Identify, Readiness, Split, Unsettled
from pipeline.serving.endpoint import HEAD, Endpoint, digest_head, served_names

TIMEOUT_S = 5.0


class ServedSlot(Record):
    """One model on an OpenAI-compatible server, which calls it `<model>@<digest12>`: its weights, or an adapter."""

    digest: str
    """Of the model, or its first 12 digits where the server's name for it says no more."""
    url: str
    """Root of the server's API, e.g. `http://127.0.0.1:8001/v1`."""
    name: str
    adapter: bool = False
    """Whether it is known to be one: nothing else can be an adapter over it."""


class SlotTable(Record):
    """All slots, several of one model where servers hold the same. A split that names a model without one is not put
    into force."""

    slots: tuple[ServedSlot, ...] = ()

    def slots_of(self, digest: str) -> list[ServedSlot]:
        """The first is asked; another one where it fails."""
        return [slot for slot in self.slots if slot.digest[:HEAD] == digest[:HEAD]]

    def slot_of(self, digest: str) -> ServedSlot | None:
        return next(iter(self.slots_of(digest)), None)


def read_slots(store: Store, model_name: str) -> SlotTable:
    """Raises ValueError for a file that can't be read."""
    return store.read(layout.slot_file(model_name), SlotTable) or SlotTable()


def listed_slots(
    model_name: str, urls: Sequence[str], timeout_s: float = 10.0, before: SlotTable | None = None
) -> SlotTable:
    """The slots of servers by their root URL, from the names that each says it serves: its model's, and those of
    adapters. A server without one of this model's names is no slot, and one that doesn't answer has the slots that it
    had, which are asked last."""
    slots: list[ServedSlot] = []
    silent: list[str] = []
    for url in urls:
        names = list[str]()
        with suppress(OSError):
            names = served_names(Endpoint(url), timeout_s)
        silent += [] if names else [url]
        for name in names:
            if (head := digest_head(name, model_name)) and not any(
                (each.url, each.digest) == (url, head) for each in slots
            ):
                slots.append(ServedSlot(digest=head, url=url, name=name, adapter=name != names[0]))
    return SlotTable(slots=(*slots, *(each for each in (before or SlotTable()).slots if each.url in silent)))


def read_split(store: Store, model_name: str) -> Split | None:
    return store.read(layout.split_file(model_name), Split)


def write_split(store: Store, model_name: str, split: Split) -> None:
    """Put a split into the file. No effect when one of a later epoch is there, or one of the same epoch with a lower
    weight, which a person wrote; a file that cannot be read has none, and must not keep a rollback out."""
    name = layout.split_file(model_name)
    with locked(store.path(f"{name}.lock")):
        current = None
        with suppress(ValueError):
            current = store.read(name, Split)
        if current is None or (current.epoch, -current.canary_weight) <= (split.epoch, -split.canary_weight):
            store.write(name, split)


def write_champion(store: Store, model_name: str, champion: ModelRef, is_rolled_out: bool) -> None:
    """Give the champion everything where no rollout says who serves: before the first one, and after the last where the
    champion is another by now. `is_rolled_out`: a rollout is under way, whose split stands."""
    name = layout.split_file(model_name)
    with locked(store.path(f"{name}.lock")):
        current = store.read(name, Split)
        if current is not None and (
            is_rolled_out or current.canary_weight or current.champion.digest == champion.digest
        ):
            return
        split = Split(
            rollout=NO_ROLLOUT,
            epoch=0 if current is None else current.epoch,
            champion=champion,
            champion_weight=100,
            canary=None,
            canary_weight=0,
        )
        store.write(name, split)


class SplitWatch:
    """The split in force in the gateway."""

    def __init__(self, store: Store, model_name: str, has_slot: Callable[[str], bool]) -> None:
        self._store, self._model_name, self._has_slot = store, model_name, has_slot
        self._path = store.path(layout.split_file(model_name))
        self._read_as: tuple[int, int, int] | None = None
        self.split: Split | None = None
        """As it was applied; its lease may have ended."""
        self.refused = ""
        """Why the file's split is not in force; "" where it is."""

    def in_force(self) -> Split | None:
        """The split to route this request by: the champion alone once the lease has ended."""
        with suppress(OSError):
            stat = self._path.stat()
            if (stat.st_ino, stat.st_mtime_ns, stat.st_size) != self._read_as:
                self._load()
                self._read_as = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
        if self.split is None or not self.expired:
            return self.split
        return self.split.model_copy(update={"champion_weight": 100, "canary_weight": 0, "expires_at": None})

    @property
    def expired(self) -> bool:
        """Whether the lease has ended without a renewal. The champion alone needs none."""
        split = self.split
        return bool(split and split.expires_at and split.canary_weight and time.time() > split.expires_at)

    def reload(self) -> None:
        """Read the file at the next request whatever it looks like: the slots have changed."""
        self._read_as = None

    def _load(self) -> None:
        try:
            read = read_split(self._store, self._model_name)
        except (OSError, ValueError) as error:
            self.refused = f"{self._path.name} cannot be read as a split ({error}). Apply the split again."
            if isinstance(error, OSError):  # the next request tries again
                raise
            return
        if read is None:  # removed since it was looked at
            return
        self.refused = self._refusal(read)
        if not self.refused:
            self.split = read

    def _refusal(self, split: Split) -> str:
        """Why a split may not come into force; "" where it may."""
        if self.split is not None and split.epoch < self.split.epoch:
            return f"Its epoch {split.epoch} is older than {self.split.epoch}, which is in force. Apply a newer one."
        if split.canary is not None and split.canary.digest == split.champion.digest:
            return f"Champion and canary are both model {split.champion.digest[:12]}. Name two models."
        asked = [split.champion]
        if split.canary is not None and split.canary_weight:
            asked.append(split.canary)
        lacking = [model.digest[:12] for model in asked if not self._has_slot(model.digest)]
        return f"No slot serves model {lacking[0]}. Load it into a slot, then apply the split again." if lacking else ""


class SlotReport(ServedSlot):
    in_flight: int


class GatewayState(Record):
    """What a gateway says of itself; it counts since its start."""

    split: Split | None
    """That requests are routed by: the champion alone once the lease has ended."""
    expired: bool
    """Whether the lease has ended: no tick renewed it."""
    refused: str
    """Why the split that was applied last is not in force; "" where it is."""
    slots: tuple[SlotReport, ...]
    slots_fault: str
    """Why the slots cannot be read; "" where they can."""
    served: int
    """Answers that callers got, errors included."""
    recorded: int
    """Of those, the ones whose spans are in a file."""
    unrecorded: int
    """Of those, the ones whose spans will be in none. The others wait for the disk."""
    recorder_fault: str
    """Why some had to wait, the last time that they had to."""
    pid: int


class GatewaySplit:
    """TrafficSplit of the embedded gateway of one model on this machine."""

    def __init__(
        self, store: Store, model_name: str, slot_of: Callable[[str], ServedSlot | None], identify: Identify
    ) -> None:
        """`slot_of`: the slot that should serve a digest; None where none does."""
        self._store, self._model_name = store, model_name
        self._slot_of, self._identify = slot_of, identify

    def read(self) -> Split | Unsettled | None:
        """What routes, asked of the gateway. Where none runs nothing routes, and what is in the file is by definition
        what the next one begins with. Raises OSError when a gateway runs and cannot be asked."""
        state = self.state()
        if state is None:
            return read_split(self._store, self._model_name)
        reason = f"The gateway keeps the split before: {state.refused}" if state.refused else ""
        if state.expired and not reason:
            reason = "The split's lease has ended, and the champion serves alone until the split is applied again."
        if not reason:
            return state.split
        asked = state.split
        with suppress(ValueError):  # the file's, where it can be read
            asked = read_split(self._store, self._model_name)
        return Unsettled(reason=reason, asked=asked)

    def apply(self, split: Split) -> None:
        """Ask for a split. No effect when one of a later epoch was asked for."""
        write_split(self._store, self._model_name, split)

    def ready(self, model: ModelRef) -> Readiness:
        slot = self._slot_of(model.digest)
        if slot is None:
            return Readiness(reason=f"No slot holds model {model.digest[:12]}. Load it.")
        try:
            served = self._identify(slot.url, slot.name)
        except OSError as error:
            return Readiness(reason=f"{slot.name} at {slot.url} does not answer: {error}")
        except ValueError as error:
            return Readiness(replicas=1, reason=str(error))
        wrong = "" if served == model.digest else f"{slot.url} serves model {served[:12]}, not {model.digest[:12]}."
        return Readiness(served_digest=served, replicas=1, reason=wrong)

    def state(self) -> GatewayState | None:
        """What the running gateway says of itself; None where none runs. Raises OSError when it cannot be asked."""
        address = running_address(self._store.path(layout.gateway(self._model_name)))
        if address is None:
            return None
        import httpx2

        try:
            answer = httpx2.get(f"{address.url}/-/split", trust_env=False, timeout=TIMEOUT_S)
            answer.raise_for_status()
            return GatewayState.model_validate_json(answer.content)
        except (httpx2.HTTPError, ValueError) as error:
            raise OSError(
                f"The gateway at {address.url} holds its lock and does not answer ({error}). Look at its log next to "
                f"the lock, and end process {address.pid} if it hangs."
            ) from error
