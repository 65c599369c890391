"""A recorded sequence of what real controllers made of a gang, answered to a launch in the order of its states.

The clock is the launch's own and costs no time. A state that the recorded launcher caused (its object, and the
deletion of it) waits until the launch under test causes it.
"""

import json
import re
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from .fake_api import Answer, FakeApi, Key, Object, key_of

PRIMARY = {"jobset": "JobSet", "volcano": "VolcanoJob", "rayjob": "RayJob"}
UNFOLLOWED = "jobset-vanished-unfollowed"
"""The scenario whose gang is deleted between two launches."""
_OFFSET = re.compile(r'"([+-]\d+)s"')


class Replay(FakeApi):
    """`gang`: the prefix of the names of the launch's objects."""

    def __init__(self, file: Path, gang: str = "gang") -> None:
        super().__init__()
        self.name, self.recorded = file.stem, json.loads(file.read_text(encoding="utf-8"))
        self.gang, self.backend = gang, self.recorded["backend"]
        self.now = -1.0
        """Of the launch's clock."""
        self.skew = 0.0
        """By how much the launch is behind the recording."""
        self._steps: list[Object] = self.recorded["steps"]
        self._next = 0
        self._released: set[tuple[str, str]] = set()
        by_hand = self.recorded["what_the_launcher_did"].startswith("interrupted")
        self._is_interrupted = by_hand or self.name == UNFOLLOWED

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.play()

    def setting(self, name: str, default: float) -> float:
        """A setting of the recipe's that the scenario names."""
        match = re.search(rf"\b{name} (?:\(|is )(\d+)", self.recorded["scenario"])
        return float(match[1]) if match else default

    def play(self, until: float | None = None) -> None:
        """Show the states up to now. `until`: of the recording's clock, whatever the launch's says."""
        while self._next < len(self._steps):
            step = self._steps[self._next]
            if until is None and step["at"] > self.now - self.skew:
                return
            if until is not None and step["at"] > until:
                return
            waits = self._waits_for(step)
            if waits is not None and waits not in self._released:
                self.skew = max(self.skew, self.now - step["at"])
                if self._is_interrupted and waits[1] == "DELETED":
                    self._released.add(waits)
                    raise KeyboardInterrupt
                return
            self._next += 1
            self._show(step)

    def applied(self, key: Key, obj: Object) -> Answer:
        name = obj["metadata"]["name"]
        self._release(name, "ADDED")
        return Answer(200, {**obj, "metadata": {**obj["metadata"], **self.objects[key]["metadata"]}})

    def delete(self, key: Key) -> None:
        name = key[2]
        if not self._release(name, "DELETED"):
            super().delete(key)
            for other in [each for each in self.objects if each[2].startswith(f"{name}-")]:
                self.objects.pop(other)

    def pods(self) -> list[Object]:
        return [obj for key, obj in self.objects.items() if key[1] == "pods"]

    def has_result(self) -> bool:
        """Where the recorded launch had one: from the moment that a trainer of it has ended well."""
        pods = [pod for pod in self.pods() if pod["metadata"]["name"].startswith(f"{self.gang}-")]
        ended = any('"exitCode": 0' in json.dumps(pod) for pod in pods)
        return ended and self.recorded["what_the_launcher_did"] == "result"

    def _release(self, name: str, event: str) -> bool:
        """Let the recording go on from where the launcher did this. False where it never did."""
        at = next((each["at"] for each in self._steps[self._next :] if self._waits_for(each) == (name, event)), None)
        self._released.add((name, event))
        if at is None:
            return False
        self.play(at)
        self.skew = self.now - at
        return True

    def _waits_for(self, step: Object) -> tuple[str, str] | None:
        """What the launch has to do before this state; None for one that comes by itself."""
        metadata: dict[str, Any] = step["object"]["metadata"]
        name = metadata.get("name", "")
        if step["kind"] != PRIMARY[self.backend] or not name.startswith(f"{self.gang}-"):
            return None
        if step["event"] == "ADDED":
            return name, "ADDED"
        ends = step["event"] == "DELETED" or metadata.get("deletionTimestamp")
        return (name, "DELETED") if ends and "-deleted-" not in self.name else None

    def _show(self, step: Object) -> None:
        state: Object = json.loads(_OFFSET.sub(_time, json.dumps(step["object"])))
        metadata = state["metadata"]
        name = metadata.get("name") or f"event-{self._next}"
        key = key_of(step["kind"], name)
        if step["event"] == "DELETED":
            self.objects.pop(key, None)
            return
        before = self.objects.get(key)
        if step["kind"] == "Event":
            state = {"type": "Warning", **state, "metadata": {**metadata, "name": name}}
        if before is not None and before["metadata"]["uid"] == metadata.get("uid", before["metadata"]["uid"]):
            merged = {**before["metadata"], **metadata}
            state = {**before, **state, "metadata": {key: value for key, value in merged.items() if value is not None}}
        self.put(key, state)


def _time(offset: re.Match[str]) -> str:
    return f'"{datetime(2026, 1, 1) + timedelta(seconds=int(offset[1])):%Y-%m-%dT%H:%M:%SZ}"'
