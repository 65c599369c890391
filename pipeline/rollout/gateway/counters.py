"""What each worker has served, recorded and has in flight, in a file that it maps into its memory (a worker that is
killed leaves its counts behind), and the gateway's state for GET /-/split and, as Prometheus's text, GET /-/metrics."""

import json
import mmap
import os
from pathlib import Path

from pipeline.core import layout
from pipeline.core.processes import process_start
from pipeline.core.storage import Record, Store
from pipeline.rollout.gateway.tables import ServedSlot
from pipeline.rollout.router import Split

SERVED, RECORDED, BREAKER_OPEN, IN_FLIGHT = range(4)
"""Places of the counts; those from IN_FLIGHT on are of the slots, in the order of their table."""
_PLACES = 16
SLOTS = _PLACES - IN_FLIGHT


class Counts(Record):
    """The sums over all workers since the gateway's start."""

    served: int
    """Answers that callers got, errors included."""
    recorded: int
    """Of those, the ones whose spans are in a file."""
    breakers_open: int
    in_flight: tuple[int, ...]
    workers: int


class Counters:
    """The counts of this process: `counters.places[SERVED] += 1`."""

    def __init__(self, store: Store, model_name: str) -> None:
        folder = _folder(store, model_name)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{os.getpid()}-{process_start(os.getpid()) or 0}"
        path.write_bytes(bytes(8 * _PLACES))
        with path.open("r+b") as file:
            self.places = memoryview(mmap.mmap(file.fileno(), 8 * _PLACES)).cast("q")


def read_counts(store: Store, model_name: str) -> Counts:
    """The sums; of workers that are dead, what they served and recorded."""
    served = recorded = breakers = workers = 0
    in_flight = [0] * SLOTS
    for path in sorted(_folder(store, model_name).glob("*-*")):
        pid, _, start = path.name.partition("-")
        content = path.read_bytes()
        if len(content) != 8 * _PLACES:  # a worker that is only beginning
            continue
        places = memoryview(content).cast("q")
        served, recorded = served + places[SERVED], recorded + places[RECORDED]
        if (process_start(int(pid)) or 0) == int(start):
            workers += 1
            breakers += places[BREAKER_OPEN]
            in_flight = [count + places[IN_FLIGHT + slot] for slot, count in enumerate(in_flight)]
    sums = {"served": served, "recorded": recorded, "breakers_open": breakers, "workers": workers}
    return Counts(**sums, in_flight=tuple(in_flight))


def forget_counts(store: Store, model_name: str) -> None:
    """Start over; for who holds the gateway's lock."""
    for path in _folder(store, model_name).glob("*-*"):
        path.unlink()


def _folder(store: Store, model_name: str) -> Path:
    return store.path(layout.gateway(model_name, "counts"))


class SlotReport(ServedSlot):
    in_flight: int


class GatewayState(Record):
    """Of the worker that answered; its counts are of all workers."""

    split: Split | None
    """That requests are routed by: the champion alone once the lease has ended."""
    expired: bool
    """Whether the lease has ended: no tick renewed it."""
    refused: str
    """Why the split that was applied last is not in force; "" where it is."""
    slots: tuple[SlotReport, ...]
    slots_fault: str
    """Why the slots cannot be read, or which servers are none; "" otherwise."""
    counts: Counts
    pid: int
    """Of the supervisor: SIGHUP to it restarts the workers one by one."""


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "preference_tuning_gateway_"


def families(state: GatewayState) -> dict[str, tuple[str, str, dict[str, float]]]:
    """Every metric by name: its kind, what it says, and its values by slot; "" where it is of the whole gateway."""
    counts, weight = state.counts, state.split.canary_weight if state.split is not None else 0
    served, recorded = "Answers that callers got, errors included.", "Of those, the ones whose spans are in a file."
    ended = "1 where the split's lease was not renewed: the champion serves alone."
    in_flight: dict[str, float] = {slot.name: slot.in_flight for slot in state.slots}
    return {
        "served_total": ("counter", served, {"": counts.served}),
        "recorded_total": ("counter", recorded, {"": counts.recorded}),
        "canary_weight_percent": ("gauge", "Share of the traffic that the split gives to the canary.", {"": weight}),
        "lease_ended": ("gauge", ended, {"": state.expired}),
        "breakers_open": ("gauge", "Workers whose circuit breaker of the canary is open.", {"": counts.breakers_open}),
        "workers": ("gauge", "Workers that are alive.", {"": counts.workers}),
        "in_flight": ("gauge", "Requests that a slot is answering.", in_flight),
    }


def exposition(state: GatewayState, model: str) -> str:
    """Prometheus's text format 0.0.4: the sums over all workers, each series with the label `model`."""
    lines: list[str] = []
    for short, (kind, help, values) in families(state).items():
        name = PREFIX + short
        lines += [f"# HELP {name} {help}", f"# TYPE {name} {kind}"]
        for slot, value in values.items():
            labels = f"model={json.dumps(model)}" + (f",slot={json.dumps(slot)}" if slot else "")
            lines.append(f"{name}{{{labels}}} {value:.0f}")
    return "\n".join(lines) + "\n"
