"""How far counters rose between two moments, by the samples that a metrics server really has of them.

A counter is read at the first scrape at or after a moment, at both ends of a window: windows that follow each other
share that scrape, so nothing counts twice and nothing is estimated between two. Every series of one server has the
times of its scrapes. Refuses to guess what a restarted server counted while nobody scraped it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from pipeline.rollout.evidence import Uncountable

Server = tuple[str, str]
"""Job and instance of what was scraped."""


class Series(NamedTuple):
    """A counter's samples, by time."""

    labels: Mapping[str, str]
    times: Sequence[float]
    """Seconds since the epoch, rising."""
    values: Sequence[float]

    @property
    def server(self) -> Server:
        return self.labels.get("job", ""), self.labels.get("instance", "")


class Scrapes(NamedTuple):
    """When each server of an arm was scraped, in seconds since the epoch, and how far apart that should be."""

    of: Mapping[Server, Sequence[float]]
    every_s: float

    @staticmethod
    def seen(series: Iterable[Series], every_s: float) -> Scrapes:
        times: dict[Server, set[float]] = {}
        for each in series:
            times.setdefault(each.server, set()).update(each.times)
        return Scrapes({server: sorted(seen) for server, seen in times.items()}, every_s)

    def fresh(self, since: float) -> Scrapes:
        """Of the servers that were scraped at or after that moment."""
        return Scrapes({server: times for server, times in self.of.items() if times[-1] >= since}, self.every_s)

    @property
    def newest(self) -> float:
        """Of the last scrape of any server; there has to be one."""
        return max(times[-1] for times in self.of.values())

    @property
    def complete_until(self) -> float:
        """The latest moment that every server was scraped at or after; there has to be one."""
        return min(times[-1] for times in self.of.values())

    def counted_from(self, since: float) -> float:
        """The latest first scrape of a window that begins at `since`."""
        return max(times[at] for times in self.of.values() if (at := bisect_left(times, since)) < len(times))

    def covers(self, since: float, until: float) -> bool:
        """Whether any server was scraped twice in that window."""
        return since < until and any(len(self.window(server, since, until)) > 1 for server in self.of)

    def window(self, server: Server, since: float, until: float) -> Sequence[float]:
        """From the scrape that a window begins at to the one that it ends at, or the server's last."""
        times = self.of[server]
        return times[bisect_left(times, since) : bisect_left(times, until) + 1]


def increase(series: Series, scrapes: Scrapes, since: float, until: float) -> float:
    """What a counter rose by; one that a scrape had not yet begins at 0, and so does one that fell.

    Raises Uncountable where it fell over a gap in the scrapes: how far it had risen before is unknown.
    """
    window = scrapes.window(series.server, since, until)
    at = dict(zip(series.times, series.values, strict=True))
    total = 0.0
    for before, after in pairwise(window):
        first, second = at.get(before, 0.0), at.get(after, 0.0)
        if second >= first:
            total += second - first
            continue
        if after - before > 2 * scrapes.every_s:
            raise Uncountable(
                f"{series.server[1]} started again within {after - before:.0f} s in which it was not scraped: what it "
                "counted then is lost. Look at the targets of Prometheus."
            )
        total += second
    return total
