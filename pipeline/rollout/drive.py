"""A run of the controller: ticks until its time is over or there is nothing to watch; a held rollout is watched too."""

import time
from collections.abc import Callable
from typing import NamedTuple

from pipeline.rollout.controller import tick
from pipeline.rollout.fold import read_state
from pipeline.rollout.ports import RolloutPorts
from pipeline.rollout.record import Phase, RolloutState

LOADS_EVERY_S = 1.0
"""How often a slot that loads the candidate is asked for, unless looks are more frequent."""


class Pace(NamedTuple):
    """How long a run of the controller stays, in seconds, and by which clock."""

    drive_for_s: float
    """0: a dwell that was running gets one look, and one that begins is left to the next run."""
    look_every_s: float = 60.0
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


def drive(ports: RolloutPorts, pace: Pace, log: Callable[[str], None] = print) -> RolloutState:
    """Tick until the rollout is over, or only waits while `pace.drive_for_s` have passed. Logs a line for each
    transition, and one for each error that the tick before had not."""
    started, name = pace.now(), ports.model_name
    before, errors = read_state(ports.store, name), tuple[str, ...]()
    while True:
        done = tick(ports, pace.now())
        state = done.state
        for error in done.errors:
            if error not in errors:
                log(f"rollout {name}: {error}")
        errors = done.errors
        if moved := (state.phase, state.stage, state.rollout) != (before.phase, before.stage, before.rollout):
            log(f"rollout {name} {state.rollout}: {_where(before)} -> {_where(state)}: {state.reason}")
        before = state
        unwatched = state.phase is Phase.HELD and state.canary_weight == 0
        if not state.active or unwatched or state.waits_for_approval:
            return state
        begun = state.phase in (Phase.OBSERVING, Phase.HELD)  # nothing to show yet
        if moved and not begun:
            continue
        pause = _pause(state, pace.look_every_s, moved)
        if pause == 0:
            continue
        if pace.now() + pause - started > pace.drive_for_s:
            return state
        pace.sleep(pause)


def _where(state: RolloutState) -> str:
    return f"{state.phase} {state.canary_weight}%" if state.active else str(state.phase)


def _pause(state: RolloutState, look_every_s: float, begun: bool) -> float:
    """Seconds until the dwell is over, if that is soon; else until the next look is due."""
    if state.phase in (Phase.GATED, Phase.APPROVED):
        return min(LOADS_EVERY_S, look_every_s)
    rest = max(0.0, state.opened.policy.dwell_s[state.stage] - state.watch.dwell_s)
    waits_for_dwell = state.phase is Phase.OBSERVING and (begun or rest > 0)
    return min(rest, look_every_s) if waits_for_dwell else look_every_s
