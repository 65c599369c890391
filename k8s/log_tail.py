"""The tail of the first pod's log: its lines to people while it runs, its last ones for a report."""

import re
from collections import deque
from collections.abc import Callable

from k8s.client import KubernetesClient, Refused, Unreachable
from k8s.gang import Gang
from k8s.observe import Observed, PodSeen
from pipeline.training.journal import PREFIX

STAMP = re.compile(r"\d{4}-\d\d-\d\dT")
KEPT = 30
"""Last lines, for a report."""
PROGRESS = (PREFIX, "evaluation: ")
"""How the lines begin that are for people at once."""


class LogTail:
    """Of whichever pod is the first of the gang now, by the time stamps of its lines."""

    def __init__(self, client: KubernetesClient, gang: Gang, log: Callable[[str], None]) -> None:
        self._client, self._gang, self._log = client, gang, log
        self._pod, self._until = "", ""
        self._last: deque[str] = deque(maxlen=KEPT)

    def follow(self, observed: Observed) -> None:
        """Pass on what came since the last look."""
        pod = _first(observed)
        if pod is None:
            return
        if pod.name != self._pod:
            self._pod, self._until = pod.name, ""
            self._last.clear()
        since = f"{self._until[:19]}Z" if self._until else ""  # the API takes whole seconds
        try:
            lines = self._client.log(self._gang.settings.namespace, pod.name, pod.container, since)
        except (Refused, Unreachable):  # a log is a kindness: 403, a node that does not answer
            return
        for stamped in lines:
            stamp, _, text = stamped.partition(" ")
            if stamp <= self._until or not STAMP.match(stamp):
                continue
            text = text.rstrip("\r").rpartition("\r")[2]  # of a progress bar, the last state
            self._until = stamp
            self._last.append(text)
            if text.startswith(PROGRESS):
                self._log(text)

    def last(self) -> str:
        """The last lines, to be put behind a report; nothing without any."""
        return "\nIts last lines:\n" + "\n".join(self._last) if self._last else ""


def _first(observed: Observed) -> PodSeen | None:
    """The pod that tells most: one that ended badly, else the lowest rank that has begun."""
    begun = [pod for pod in observed.pods if pod.phase != "Pending"]
    failed = [pod for pod in begun if pod.exit_code not in (None, 0, 143)]
    ranked = sorted([pod for pod in failed or begun if pod.rank >= 0], key=lambda pod: pod.rank)
    return ranked[0] if ranked else None
