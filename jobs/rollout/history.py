"""`history`: every rollout of the model and every decision about it, each with its entry in the audit log."""

import argparse
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from assets.resources import Deployment
from jobs.rollout import DONE, REFUSED, AddCommand, look_command
from pipeline.core import audit
from pipeline.rollout.reconcile import audited
from pipeline.rollout.record import Phase, RolloutEvent, read_events

SHOWN = {"epoch", "at", "phase", "stage", "reason", "by"}


def add_to(add: AddCommand) -> None:
    command = add("history", help="every rollout and decision, with its entry in the audit log")
    command.add_argument("--looks", action="store_true", help="each look too, not only those that decided")
    command.add_argument("--json", action="store_true", help="one JSON object for each rollout")
    command.set_defaults(run=_history)


def past_rollouts(
    events: Sequence[RolloutEvent], entries: Mapping[tuple[str, int], int], looks: bool
) -> list[dict[str, Any]]:
    """The log by rollout. `entries`: number of the audit entry of each rollout and epoch. Of events those that changed
    something, that a person asked for or that the audit log has to have; with `looks` all."""
    past: dict[str, dict[str, Any]] = {}
    before, stage = Phase.IDLE, 0
    for event in events:
        if event.proposal is not None:
            version, by = event.proposal.version, event.proposal.proposed_by
            one = {"version": version.version, "digest": version.model.digest, "iteration": version.iteration}
            past[event.rollout] = {"rollout": event.rollout, **one, "proposed_by": by, "looks": 0, "passages": []}
        one = past[event.rollout]
        one["looks"] += event.look is not None or event.missed
        is_audited = audited(before, event) is not None
        moved = (event.phase, event.stage) != (before, stage) or event.proposal is not None
        if looks or moved or event.by or is_audited:
            entry = entries.get((event.rollout, event.epoch))
            passage = event.model_dump(mode="json", include=SHOWN)
            one["passages"].append({**passage, "audited": is_audited, "entry": entry})
        before, stage = event.phase, event.stage
    return list(past.values())


def lines(past: Sequence[dict[str, Any]]) -> Iterator[str]:
    missing: list[str] = []
    for each in past:
        by = f", proposed by {each['proposed_by']}" if each["proposed_by"] else ""
        version = f"version {each['version']} ({each['digest'][:12]})"
        yield f"rollout {each['rollout']}: {version}, iteration {each['iteration']}{by}"
        for passage in each["passages"]:
            when = f"{datetime.fromtimestamp(passage['at'], UTC):%Y-%m-%d %H:%M:%S}"
            by = f" (by {passage['by']})" if passage["by"] else ""
            entry = f" [audit {passage['entry']}]" if passage["entry"] else ""
            stage = f"stage {passage['stage'] + 1}"
            yield f"{passage['epoch']:>6}  {when}  {passage['phase']:<12} {stage}  {passage['reason']}{by}{entry}"
            if passage["audited"] and not passage["entry"]:
                missing.append(f"{each['rollout']} epoch {passage['epoch']}")
        yield f"        {each['looks']:,} looks"
    if missing:
        yield f"Not in the audit log: {', '.join(missing)}. The next look writes them: {look_command()}"
    else:
        yield "Every decision has its entry in the audit log; to check that log: pt governance verify"


def _history(settings: Deployment, asked: argparse.Namespace) -> int:
    store = settings.store()
    entries = {
        (entry.subject.partition("/")[0], int(entry.detail["epoch"])): entry.n
        for entry in audit.entries(store)
        if "epoch" in entry.detail
    }
    past = past_rollouts(read_events(store, settings.recipe().base_model.name), entries, asked.looks)
    if not past:
        print("No candidate was ever rolled out.")
        return REFUSED
    print("\n".join(map(json.dumps, past) if asked.json else lines(past)))
    return DONE
