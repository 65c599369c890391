"""Goodput under simulated pre-emptions, by the trainer's own decisions and account on a virtual clock: `python -m
benchmarks.preemption [--small] [--schedules N]`. The aim for five hours with restarts of 300 s: .93 at three, .88 at
six with notice. The last line is JSON: `goodput` and `worst` by profile and number, `time_share` by cause."""

import json
import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.parts import options
from pipeline.recipe import Checkpoints
from pipeline.training.account import account
from pipeline.training.checkpoints.checkpointer import SaveSchedule
from pipeline.training.journal import Kind, TrainingEvent
from pipeline.training.result import Goodput

BACKSTOP = 0.9
"""Of the grace, after which the trainer ends whatever it does (pipeline/training/callback.py)."""


class Profile(NamedTuple):
    """One training on one pool. Step, save and interval are seed 000's (7B with LoRA on two p4d)."""

    work_s: float = 5 * 3600.0
    """Of steps alone."""
    step_s: float = 48.0
    save_s: float = 8.0
    start_s: float = 60.0
    """From a process's start to its first step: imports, weights, rendezvous."""
    wait_s: float = 240.0
    """From the end of one gang to the start of the next one's processes: capacity, nodes, images."""
    end_s: float = 30.0
    """The export."""
    notice_s: float = 120.0
    """From SIGTERM to the node's end; 0: nobody is told."""
    grace_s: float = 100.0
    """From SIGTERM to SIGKILL."""
    sigterm_saves: float = 1.0
    """How often a notice leads to a checkpoint where there is time for one. Field reports: 0 of 6."""
    checkpoints: Checkpoints = Checkpoints()


COUNTS = (0, 1, 3, 6)
EVERY_S = 6000.0
"""Three in five hours."""
RULE = Checkpoints(interruption_every_s=EVERY_S)
PROFILES = {
    "notice, saves at SIGTERM": Profile(),
    "notice, never saves": Profile(sigterm_saves=0.0),
    "no notice": Profile(notice_s=0.0),
    "notice, Young-Daly": Profile(checkpoints=RULE),
    "no notice, Young-Daly": Profile(notice_s=0.0, checkpoints=RULE),
    "no notice, seed 003's steps": Profile(step_s=122.9, save_s=21.5, notice_s=0.0),
    "no notice, restarts of 900 s": Profile(wait_s=840.0, notice_s=0.0),
}
"""Else: steps of 48 s, a save of 8 s every 10 of them (seed 000), restarts of 300 s. Seed 003: Llama 8B, 16 B200."""


def main() -> None:
    parser = options(__doc__, "one of them")
    parser.add_argument("--schedules", type=int, default=20, help="of each profile and number of pre-emptions")
    asked = parser.parse_args()
    schedules = 1 if asked.small else asked.schedules
    found = {name: goodputs(profile, schedules) for name, profile in PROFILES.items()}
    print(json.dumps(summary(found)))


class SimulatedGang:
    """The processes of a training as one. `ran_s` is the clock while it holds its nodes, `waited_s` the rest."""

    def __init__(self, profile: Profile, interruptions_at: Sequence[float], seed: int) -> None:
        """`seed`: of which notices save."""
        self._profile, self._dice = profile, random.Random(seed)
        self._due = deque(sorted(set(interruptions_at)))
        self._at = self._resume = 0
        self._told, self._dies_at = False, math.inf
        self.events: list[TrainingEvent] = []
        self.ran_s = self.waited_s = 0.0

    def attempt(self) -> bool:
        """From the start of the processes to their end; whether the training is done."""
        profile, self._at = self._profile, self._resume
        steps, cadence = max(1, round(profile.work_s / profile.step_s)), SaveSchedule(profile.checkpoints)
        while self._due and self._due[0] <= self.ran_s:
            self._due.popleft()
        self._told, self._dies_at = False, math.inf
        self._say("started")
        if not self._lives("start", profile.start_s):
            return False
        self._say("ready")
        saved_at = self.ran_s
        for step in range(self._resume + 1, steps + 1):
            if not self._lives("step", profile.step_s):
                return False
            self._at = step
            self._say("step", step=profile.step_s)
            leaving = self._told  # who is told during a save hears it after the next step
            if step < steps and (leaving or cadence.due(step, self.ran_s - saved_at)):
                if not self._lives("save", profile.save_s):
                    return False
                cadence.saved(profile.save_s)
                self._resume, saved_at = step, self.ran_s
                self._say("saved", save=profile.save_s)
                if leaving:
                    return False
        if not self._lives("end", profile.end_s):
            return False
        self._say("ended", why="done")
        return True

    def _lives(self, phase: str, seconds: float) -> bool:
        """Let time pass; False for a gang that does not live to see the end of it.

        Who is told leaves at once with no model loaded.
        """
        profile, end = self._profile, self.ran_s + seconds
        if not self._told and self._due and (at := self._due[0]) <= end:
            self._told, self._dies_at = True, at
            if profile.notice_s:
                self.ran_s = at
                self._say("stopping", why="SIGTERM")
                if phase != "start" and self._dice.random() < profile.sigterm_saves:
                    self._dies_at = at + min(BACKSTOP * profile.grace_s, profile.notice_s)
        self.ran_s = min(end, self._dies_at)
        return end <= self._dies_at

    def _say(self, kind: Kind, why: str = "", **seconds: float) -> None:
        at = self.ran_s + self.waited_s
        self.events.append(TrainingEvent(kind=kind, at=at, step=self._at, seconds=seconds, why=why))


def run(profile: Profile, interruptions_at: Sequence[float], seed: int = 0) -> Goodput:
    """Seconds by cause of a training that is interrupted at those seconds of the time that it holds its nodes."""
    gang = SimulatedGang(profile, interruptions_at, seed)
    while not gang.attempt():
        gang.waited_s += profile.wait_s
    return account(gang.events)


def goodputs(profile: Profile, schedules: int) -> dict[int, list[Goodput]]:
    """By number of pre-emptions, one account for each schedule."""
    whole_s = run(profile, ()).total_s

    def one(count: int, seed: int) -> Goodput:
        dice = random.Random(f"{count}/{seed}")
        return run(profile, [dice.uniform(0, whole_s) for _ in range(count)], seed)

    return {count: [one(count, seed) for seed in range(schedules if count else 1)] for count in COUNTS}


def shares(found: Sequence[Goodput]) -> dict[str, float]:
    """Of the whole time of these trainings, by cause; they sum to 1."""
    total = sum(each.total_s for each in found)
    spent = {cause: sum(each.badput_s[cause] for each in found) / total for cause in found[0].badput_s}
    return {"productive": sum(each.productive_s for each in found) / total, **spent}


def summary(found: Mapping[str, Mapping[int, Sequence[Goodput]]]) -> dict[str, Any]:
    def of(which: Any) -> dict[str, dict[str, float]]:
        return {
            name: {str(count): round(which(g.share for g in each), 3) for count, each in by_count.items()}
            for name, by_count in found.items()
        }

    return {
        "goodput": of(fmean),
        "worst": of(min),
        "time_share": {
            name: {cause: round(share, 4) for cause, share in shares(by_count[COUNTS[-1]]).items()}
            for name, by_count in found.items()
        },
    }


if __name__ == "__main__":
    main()
