"""A run of the controller: ticks, one after the other, until a person or time is what the rollout waits for.

Owns the pace. Refuses to decide anything: ticks do, and a run that dies is taken up by the next one.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

from pipeline.rollout.controller import RolloutPorts, tick
from pipeline.rollout.record import TERMINAL, Phase, RolloutState, read_state


class Pace(NamedTuple):
    """How long a run of the controller stays, in seconds, and by which clock."""

    drive_for_s: float
    """0: a dwell that was running gets one look, and one that begins is left to the next run."""
    look_every_s: float = 60.0
    now: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep


def drive(ports: RolloutPorts, pace: Pace, log: Callable[[str], None] = print) -> RolloutState:
    """Tick until the rollout is over or held, or only waits while `pace.drive_for_s` have passed.

    Logs a line for each transition and each registry error.
    """
    started, name = pace.now(), ports.model_name
    before = read_state(ports.store, name)
    while True:
        done = tick(ports, pace.now())
        state = done.state
        for error in done.errors:
            log(f"rollout {name}: {error}")
        if moved := (state.phase, state.stage, state.rollout) != (before.phase, before.stage, before.rollout):
            log(f"rollout {name} {state.rollout}: {_where(before)} -> {_where(state)}: {state.reason}")
        before = state
        if state.phase in TERMINAL or state.phase in (Phase.IDLE, Phase.HELD):
            return state
        if moved and state.phase is not Phase.OBSERVING:  # a stage that has just begun has nothing to show yet
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
    assert state.proposal is not None, "without a rollout there is nothing to wait for"
    rest = max(0.0, state.proposal.policy.dwell_s[state.stage] - state.dwell_s)
    waits_for_dwell = state.phase is Phase.OBSERVING and (begun or rest > 0)
    return min(rest, look_every_s) if waits_for_dwell else look_every_s
