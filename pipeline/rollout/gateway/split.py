"""The rollout's port to the gateway: TrafficSplit over the split file and GET /-/split."""

from collections.abc import Callable, Sequence
from contextlib import suppress

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Store
from pipeline.rollout.evidence import Unit
from pipeline.rollout.gateway.counters import GatewayState
from pipeline.rollout.gateway.process import running_address
from pipeline.rollout.gateway.tables import ServedSlot, read_split, write_split
from pipeline.rollout.router import Readiness, Split, Unsettled

TIMEOUT_S = 5.0

Identify = Callable[[str], str]
"""Digest of the model that the server at a root URL really serves, by its fingerprint. Raises ValueError saying why it
is none that is known, OSError when it does not answer."""


class GatewaySplit:
    """TrafficSplit of the embedded gateway of one model on this machine."""

    unit: Unit = "user"

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
        if state.refused:
            return Unsettled(reason=f"The gateway keeps the split before: {state.refused}", asked=self._asked(state))
        if state.expired:
            alone = "The split's lease has ended, and the champion serves alone until the split is applied again."
            return Unsettled(reason=alone, asked=self._asked(state))
        return state.split

    def _asked(self, state: GatewayState) -> Split | None:
        """The file's split; what the gateway has where that cannot be read."""
        with suppress(ValueError):
            return read_split(self._store, self._model_name)
        return state.split

    def apply(self, split: Split) -> None:
        """Ask for a split. No effect when one of a later epoch was asked for."""
        write_split(self._store, self._model_name, split)

    def ready(self, model: ModelRef) -> Readiness:
        slot = self._slot_of(model.digest)
        if slot is None:
            return Readiness(served_digest="", replicas=0, reason=f"No slot holds model {model.digest[:12]}. Load it.")
        try:
            served = self._identify(slot.url)
        except OSError as error:
            return Readiness(served_digest="", replicas=0, reason=f"{slot.name} at {slot.url} does not answer: {error}")
        except ValueError as error:
            return Readiness(served_digest="", replicas=1, reason=str(error))
        wrong = "" if served == model.digest else f"{slot.url} serves model {served[:12]}, not {model.digest[:12]}."
        return Readiness(served_digest=served, replicas=1, reason=wrong)

    def servers(self, model: ModelRef) -> Sequence[str]:
        """The address of the model's slot, behind which there may be several servers."""
        slot = self._slot_of(model.digest)
        return () if slot is None else (slot.url,)

    def state(self) -> GatewayState | None:
        """What the running gateway says of itself; None where none runs. Raises OSError when it cannot be asked."""
        address = running_address(self._store.path(layout.gateway(self._model_name)))
        if address is None:
            return None
        import httpx2

        try:
            with httpx2.Client(trust_env=False, timeout=TIMEOUT_S) as client:
                answer = client.get(f"{address.url}/-/split")
                answer.raise_for_status()
                return GatewayState.model_validate_json(answer.content)
        except (httpx2.HTTPError, ValueError) as error:
            raise OSError(
                f"The gateway at {address.url} holds its lock and does not answer ({error}). Look at its log next to "
                f"the lock, and end process {address.pid} if it hangs."
            ) from error
