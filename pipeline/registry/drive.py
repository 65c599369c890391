"""A run of the controller: ticks, one after the other, until a person or time is what the rollout waits for.

Owns the pace. Refuses to decide anything: ticks do, and a run that dies is taken up by the next one.
"""

from __future__ import annotations

from collections.abc import Callable

from pipeline.registry.record import TERMINAL, Phase, RolloutState, read_state
from pipeline.registry.rollout import LiveMetricsPort, Projection, tick
from pipeline.registry.router import TrafficSplit
from pipeline.storage import ModelRef, Store


def drive(
    store: Store,
    model_name: str,
    split: TrafficSplit,
    metrics: LiveMetricsPort,
    project: Projection,
    *,
    drive_for_s: float,
    now: Callable[[], float],
    sleep: Callable[[float], None],
    log: Callable[[str], None] = print,
    look_every_s: float = 60.0,
    intact: Callable[[ModelRef], bool] | None = None,
) -> RolloutState:
    """Tick until the rollout is over or held, or only waits while `drive_for_s` (seconds) have passed.

    With `drive_for_s=0` a dwell that was running gets one look, and one that begins is left to the next run. Logs a
    line for each transition and each registry error.
    """
    started = now()
    before = read_state(store, model_name)
    while True:
        done = tick(store, model_name, split, metrics, project, now(), intact)
        state = done.state
        for error in done.errors:
            log(f"rollout {model_name}: {error}")
        if moved := (state.phase, state.stage, state.rollout) != (before.phase, before.stage, before.rollout):
            log(f"rollout {model_name} {state.rollout}: {_where(before)} -> {_where(state)}: {state.reason}")
        before = state
        if state.phase in TERMINAL or state.phase in (Phase.IDLE, Phase.HELD):
            return state
        if moved and state.phase is not Phase.OBSERVING:  # a stage that has just begun has nothing to show yet
            continue
        pause = _pause(state, look_every_s, moved)
        if pause == 0:
            continue
        if now() + pause - started > drive_for_s:
            return state
        sleep(pause)


def _where(state: RolloutState) -> str:
    return f"{state.phase} {state.canary_weight}%" if state.active else str(state.phase)


def _pause(state: RolloutState, look_every_s: float, begun: bool) -> float:
    """Seconds until the dwell is over, if that is soon; else until the next look is due."""
    assert state.proposal is not None, "without a rollout there is nothing to wait for"
    rest = max(0.0, state.proposal.policy.dwell_s[state.stage] - state.dwell_s)
    waits_for_dwell = state.phase is Phase.OBSERVING and (begun or rest > 0)
    return min(rest, look_every_s) if waits_for_dwell else look_every_s
