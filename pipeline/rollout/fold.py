"""What a rollout's log adds up to, and a snapshot of it; and the tally of a stage by unit, an object of its own that is
there before the event that names it and has its sums, and removed once a later event names another."""

from collections.abc import Iterable
from contextlib import suppress
from functools import cache, reduce
from pathlib import Path

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Record, Store, digest_file, digest_json
from pipeline.rollout.evidence import StageTally
from pipeline.rollout.record import (
    TERMINAL,
    LookResult,
    PastRollouts,
    Phase,
    RolloutEvent,
    RolloutState,
    StageWatch,
    event_file,
    read_events,
)
from pipeline.serving.adapters import ServedAdapter

SNAPSHOT_EVERY = 20
"""Events after which a tick renews the snapshot."""


class RolloutLog(Record):
    """What the log adds up to."""

    state: RolloutState = RolloutState()
    events: tuple[RolloutEvent, ...] = ()
    """Without the looks that decided nothing, but for the last one before each other event and the last of all."""
    key: str = ""
    """Of a snapshot: digest of the code that added the log up, and of its last event."""

    @property
    def rested_on(self) -> frozenset[str]:
        """Iterations whose candidate is in the traffic, or was promoted."""
        rollouts = {event.rollout for event in self.events if event.phase is Phase.PROMOTED}
        rollouts |= {self.state.rollout} if self.state.active else set()
        opened = (event.proposal for event in self.events if event.proposal and event.rollout in rollouts)
        return frozenset(each.version.iteration for each in opened)


def fold(events: Iterable[RolloutEvent], log: RolloutLog | None = None) -> RolloutLog:
    """The log with these events, which are in epoch order after its own. Pure."""
    return reduce(_with, events, log or RolloutLog())


def read_state(store: Store, model_name: str) -> RolloutState:
    return read_log(store, model_name).state


def read_log(store: Store, model_name: str, keep: bool = False) -> RolloutLog:
    """Its snapshot, where that is of these events and of this code, and what came since. `keep`: renew an old one."""
    name, kept, log = layout.rollout(model_name, "snapshot.json"), None, RolloutLog()
    with suppress(ValueError):  # it is torn, or has other fields
        kept = store.read(name, RolloutLog)
    if kept is not None and kept.key == _key(store, model_name, kept.state.epoch):
        log = kept.model_copy(update={"key": ""})
    log = fold(events := read_events(store, model_name, log.state.epoch), log)
    if keep and len(events) >= SNAPSHOT_EVERY:
        store.write(name, log.model_copy(update={"key": _key(store, model_name, log.state.epoch)}))
    return log


def _key(store: Store, model_name: str, epoch: int) -> str:
    last = store.path(event_file(model_name, epoch))
    return digest_json([_code(), digest_file(last) if last.exists() else ""])


@cache
def _code() -> str:
    return digest_json([digest_file(path) for path in sorted(Path(__file__).parent.glob("*.py"))])


def _with(log: RolloutLog, event: RolloutEvent) -> RolloutLog:
    state, events = _after(log.state, event), log.events
    if events and _only_looks(state, event) and _only_looks(log.state, events[-1]):
        events = events[:-1]
    return RolloutLog.model_construct(state=state, events=(*events, event))


def _only_looks(after: RolloutState, event: RolloutEvent) -> bool:
    """Whether the event, with the state after it, decided nothing."""
    return not (after.requested_epoch == event.epoch or event.by or event.phase is Phase.ROLLING_BACK)


def in_rollout(store: Store, model_name: str) -> dict[str, int]:
    """Digest and version of the canary that runs and of all that were quarantined: nothing is learned from their
    answers."""
    state = read_state(store, model_name)
    if not state.active:
        return state.past.quarantined
    return {**state.past.quarantined, state.opened.version.model.digest: state.opened.version.version}


def models_to_serve(state: RolloutState, champion: ModelRef, now: float) -> list[ModelRef]:
    """The champion, a candidate on its way, and the champion before while it is the way back. Pure."""
    wanted = [champion]
    if state.active:
        wanted.append(state.opened.version.model)
    elif now < state.warm_until:
        wanted.append(state.opened.champion)
    return list({model.digest: model for model in wanted}.values())


def adapters_to_serve(state: RolloutState) -> dict[str, ServedAdapter]:
    """By its model's digest, the newest candidate as the adapter over the champion that it was trained on. Pure."""
    if state.proposal is None:
        return {}
    version = state.proposal.version
    return {version.model.digest: ServedAdapter(base=state.proposal.champion.digest, adapter=version.adapter)}


def _after(state: RolloutState, event: RolloutEvent) -> RolloutState:
    assert event.epoch == state.epoch + 1, f"event {event.epoch} follows {state.epoch} in the log"
    moved = (event.phase, event.stage) != (state.phase, state.stage) or event.weight is not None
    waits = state.phase is event.phase and event.phase in (Phase.HELD, Phase.ROLLING_BACK)
    change: dict[str, object] = {
        "epoch": event.epoch,
        "requested_epoch": event.epoch if moved else state.requested_epoch,
        "phase": event.phase,
        "stage": event.stage,
        # what is seen while it waits is not why it waits
        "reason": state.reason if waits and event.weight is None else event.reason,
    }
    if event.proposal is not None:
        return RolloutState(past=state.past, proposal=event.proposal).model_copy(update=change)
    watch = _seen(state, event)
    if event.phase is not state.phase or event.weight is not None:
        change |= _entered(state, event, watch)
    change = {"watch": watch, **change}
    if event.action == "approve":
        change["approved_by"] = event.by
    return state.model_copy(update=change)


def _seen(state: RolloutState, event: RolloutEvent) -> StageWatch:
    watch, look = state.watch, event.look
    change: dict[str, object] = {}
    if event.clock_went_back:  # what the new readings cover is counted again, so the evidence starts over
        change |= {"evidence": watch.evidence.fresh(), "tally": "", "looks": watch.looks + 1, "watched_until": event.at}
    elif look is not None or event.missed:
        change |= {
            "looks": watch.looks + 1,
            "misses": watch.misses + 1 if event.missed else 0,
            "unready": watch.unready + 1 if event.unready else 0,
        }
        if look is not None:
            until = max(watch.watched_until, look.window_end)
            change |= {"evidence": look.evidence, "tally": look.tally, "watched_until": until}
            if not event.missed:
                covered, judged = watch.covered_s + adds_s(state, look), max(watch.judged_until, look.judged_until)
                change |= {"covered_s": covered, "judged_until": judged}
        elif not event.unread:
            until = max(watch.watched_until, event.at)
            change |= {"evidence": watch.evidence.skipped_to(until), "watched_until": until}
    return watch.model_copy(update=change)


def adds_s(state: RolloutState, look: LookResult) -> float:
    """Seconds that a look adds to what is covered: its window without what was watched before, within one look's
    longest. A clock that jumped ahead, or a controller that was away, is no time observed."""
    window = look.window_end - max(look.window_start, state.watch.watched_until)
    return max(0.0, min(window, state.opened.policy.max_look_s))


def _entered(state: RolloutState, event: RolloutEvent, watch: StageWatch) -> dict[str, object]:
    """What entering a phase changes. `watch`: with the event's look."""
    skipped, evidence = max(state.watch.watched_until, event.at), watch.evidence
    begun = StageWatch(looks=watch.looks, watched_until=skipped)
    resumed = state.phase is Phase.HELD  # only a person leads out of it, except to 0
    match event.phase:
        case Phase.SHIFTING:
            asked: dict[str, object] = {"offered": True, "weight_in_force": state.canary_weight}
            if resumed and state.weight_in_force == state.confirmed_weight:
                kept = {"evidence": evidence.resumed().skipped_to(skipped), "tally": watch.tally}
                return {**asked, "watch": begun.model_copy(update=kept)}
            # Or a stage begins, also its own again: at a weight that somebody lowered, users were in the other arm.
            kept = {"evidence": evidence.closed(state.opened.policy.unit), "tally": watch.tally}
            return {**asked, "watch": begun.model_copy(update=kept)}
        case Phase.OBSERVING:
            kept = {"evidence": evidence.resumed().skipped_to(skipped), "tally": watch.tally}
            observed = begun.model_copy(update={**kept, "since": event.at})
            return {"confirmed_stage": event.stage, "watch": observed}
        case Phase.GATED | Phase.APPROVED:
            return {"watch": watch.model_copy(update={"misses": 0, "unready": 0})}
        case Phase.HELD:
            return {"weight_in_force": state.confirmed_weight if event.weight is None else event.weight}
        case Phase.ROLLING_BACK:
            back = {"champion": state.past.previous, "champion_since": event.at, "previous": None}
            past = state.past.model_copy(update=back) if state.phase is Phase.PROMOTED else state.past
            return {"quarantine": event.quarantine, "watch": watch.model_copy(update={"misses": 0}), "past": past}
        case phase if phase in TERMINAL:
            return {"past": _ended(state, event)}
        case _:
            return {}


def _ended(state: RolloutState, event: RolloutEvent) -> PastRollouts:
    past, version = state.past, state.opened.version
    change: dict[str, object] = {"finished": {**past.finished, state.rollout: event.phase}}
    if event.phase is Phase.PROMOTED:
        serving = {"champion": version, "champion_since": event.at, "previous": past.champion}
        change |= {**serving, "promotions": past.promotions + 1}
    if event.phase is Phase.ROLLED_BACK:
        change["quarantined"] = {**past.quarantined, version.model.digest: version.version}
    return past.model_copy(update=change)


def write_tally(store: Store, model_name: str, epoch: int, tally: StageTally) -> str:
    """Keep the tally that the event of this epoch is to name; returns the name."""
    name = f"{epoch:06d}-{digest_json(tally)[:16]}"
    store.create(_path(model_name, name), tally)
    return name


def read_tally(store: Store, model_name: str, name: str) -> StageTally | None:
    """The tally of that name, or None when it is gone or is not what was written: its sums can't be added to then."""
    try:
        tally = store.read(_path(model_name, name), StageTally)
    except ValueError:
        return None
    return tally if tally is not None and name.endswith(digest_json(tally)[:16]) else None


def drop_tallies(store: Store, model_name: str, state: RolloutState) -> None:
    """Remove what no later event can name: all of them once the rollout is over, else those before the one in use."""
    kept = state.watch.tally if state.active else ""
    for path in store.path(layout.rollout(model_name, "tallies")).glob("[0-9]*.json"):
        if path.stem < kept or not state.active:
            path.unlink(missing_ok=True)


def _path(model_name: str, name: str) -> str:
    return layout.rollout(model_name, "tallies", f"{name}.json")
