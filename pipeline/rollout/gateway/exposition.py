"""The gateway's counts as Prometheus reads them: the answer of GET /-/metrics, text format 0.0.4.

The sums over all workers since the gateway's start, so whichever worker is scraped says the same. Owns names, types and
help texts. Refuses to count: `counters` does, and the split's state is that of GET /-/split.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from pipeline.rollout.gateway.state import GatewayState

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "preference_tuning_gateway_"


class MetricFamily(NamedTuple):
    """One metric: its kind, what it says, and its values by their labels."""

    name: str
    kind: str
    help: str
    values: tuple[tuple[dict[str, str], float], ...]


def exposition(state: GatewayState, model: str) -> str:
    """The whole answer, each series with the label `model`."""
    return "".join(line for family in families(state) for line in _lines(family, model))


def families(state: GatewayState) -> Iterator[MetricFamily]:
    """Every metric that the gateway has, in a fixed order."""
    counts = state.counts
    for name, help, value in (
        ("served_total", "Answers that callers got, errors included.", counts.served),
        ("recorded_total", "Of the served answers, those whose spans are in a file.", counts.recorded),
    ):
        yield MetricFamily(f"{PREFIX}{name}", "counter", help, (({}, float(value)),))
    weight = state.split.canary_weight if state.split is not None else 0
    for name, help, value in (
        ("canary_weight_percent", "Share of the traffic that the split in force gives to the canary.", weight),
        ("lease_ended", "1 where no tick renewed the split's lease, and the champion serves alone.", state.expired),
        ("breakers_open", "Workers that spare the canary a try at the moment.", counts.breakers_open),
        ("workers", "Workers that are alive.", counts.workers),
    ):
        yield MetricFamily(f"{PREFIX}{name}", "gauge", help, (({}, float(value)),))
    in_flight = tuple(({"slot": slot.name}, float(slot.in_flight)) for slot in state.slots)
    yield MetricFamily(f"{PREFIX}in_flight", "gauge", "Requests that a slot is answering.", in_flight)


def _lines(family: MetricFamily, model: str) -> Iterator[str]:
    yield f"# HELP {family.name} {family.help}\n# TYPE {family.name} {family.kind}\n"
    for labels, value in family.values:
        written = ",".join(f'{name}="{_escaped(text)}"' for name, text in {"model": model, **labels}.items())
        yield f"{family.name}{{{written}}} {value:.0f}\n"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
