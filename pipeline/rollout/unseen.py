"""Which recorded requests a candidate has not learned from: only these are replayed to it.

Rule. A request is left out when its prompt is one that the candidate, or a champion that it descends from, was trained
on, or that its training was watched and its best checkpoint chosen by: the same roles and texts up to case, spacing
and Unicode form. Rows would not do: users ask the same thing again. Departure: near-duplicates with other words stay.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import pyarrow.parquet as pq

from pipeline import layout
from pipeline.rollout.evidence import MIN_GRADED
from pipeline.rollout.record import Proposal, RolloutEvent
from pipeline.serving.inference import Messages
from pipeline.storage import Store, digest_json
from pipeline.traces.pii import normalised


def unseen(
    store: Store, events: Sequence[RolloutEvent], requests: Sequence[tuple[Messages, str]], log: Callable[[str], None]
) -> list[tuple[Messages, str]]:
    """The requests that the candidate of the latest rollout has not learned from.

    `events`: its model's whole log, not empty. `requests`: prompts with the references that answers are graded by.
    Raises ValueError when fewer distinct prompts are left than the policy wants requests, or when nobody can tell what
    the candidate learned from.
    """
    line = lineage(events)
    first, wanted = line[0].version.iteration, line[0].policy.min_canary_requests
    wanted = MIN_GRADED if wanted == "auto" else wanted
    learned = _learned(store, first)
    if learned is None:
        raise ValueError(
            f"The rows that iteration {first} was trained on are gone: no request can be shown to be new to its "
            "candidate. Restore them from a backup, or abort the rollout: python -m jobs.rollout status"
        )
    for proposal in line[1:]:
        learned |= _learned(store, proposal.version.iteration) or set()
    keys = [prompt_key(prompt) for prompt, _ in requests]
    kept = [request for request, key in zip(requests, keys, strict=True) if key not in learned]
    distinct = len(set(keys) - learned)
    share = f"{len(requests) - len(kept):,} of {len(requests):,} recorded requests ask what it learned from"
    log(f"replay: {share}; {len(kept):,} with {distinct:,} distinct prompts are replayed")
    if distinct < wanted:
        raise ValueError(
            f"There is not enough held-out traffic to replay: {share}, the others have {distinct:,} distinct prompts, "
            f"{wanted:,} are wanted (rollout.min_canary_requests). Wait for new traces, or abort the rollout."
        )
    return kept


def lineage(events: Iterable[RolloutEvent]) -> list[Proposal]:
    """The latest proposal, then those of the champions that its candidate descends from, back to the base model."""
    by_digest: dict[str, Proposal] = {}
    proposal: Proposal | None = None
    for event in events:
        if event.proposal is not None:
            proposal = event.proposal
            by_digest[proposal.version.model.digest] = proposal
    line: list[Proposal] = []
    while proposal is not None and proposal not in line:
        line.append(proposal)
        proposal = by_digest.get(proposal.champion.digest)
    return line


def prompt_key(prompt: Sequence[Mapping[str, str]]) -> str:
    """Equal for prompts that ask the same: roles and texts, without case, spacing and Unicode form."""
    return digest_json([[m["role"], " ".join(normalised(m["content"]).casefold().split())] for m in prompt])


def _learned(store: Store, iteration: str) -> set[str] | None:
    """Keys of the prompts of an iteration's training and of its validation; None when its training rows are gone."""
    folder = store.path(layout.iteration(iteration, layout.TRAINING))
    rows, watched = folder / layout.ROWS_FILE, folder / layout.HELD_OUT_FILE
    if not rows.is_file():
        return None
    tables = [pq.read_table(path, columns=["prompt"]) for path in (rows, watched) if path.is_file()]
    return {prompt_key(prompt) for table in tables for prompt in table["prompt"].to_pylist()}
