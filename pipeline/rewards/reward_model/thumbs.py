"""Thumbs: which rated rows a reward model may learn from, and who of the users trains, chooses and measures.

Rule. A row's feedback over one half is a thumb up, under it a thumb down; exactly one half is a contradiction and no
thumb. A user has at most `max_user_share` of the thumbs, or twice an equal part where users are too few for that. Users
are split, never rows: a hash of seed and user puts each into one part. What a hash decides, no user can choose.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Protocol

from pipeline.core.estimate import share
from pipeline.recipe.reward_model import RewardModelSettings
from pipeline.rewards.reward_model.records import ThumbCounts

UserPart = Literal["train", "validation", "held_out"]
LEAST_THUMBS = 40
"""Below it nothing is trained: there is not one batch to learn from and another to measure by."""
LEAST_USERS = 10
LEAST_OF_A_CLASS = 5
"""Thumbs up, and thumbs down, of the training users: fewer show nothing of what is liked."""


class RatedRow(Protocol):
    """A labelled trace, as selection reads it."""

    @property
    def trace_id(self) -> str: ...
    @property
    def observation_id(self) -> str: ...
    @property
    def user_id(self) -> str: ...
    @property
    def prompt(self) -> str: ...
    @property
    def completion(self) -> str: ...
    @property
    def feedback(self) -> float | None: ...


class Thumb(NamedTuple):
    """One rated answer. `prompt`: chat messages as JSON."""

    key: str
    user: str
    prompt: str
    completion: str
    up: bool


def thumbs_of(
    rows: Sequence[RatedRow], settings: RewardModelSettings, left_out: Mapping[str, int]
) -> tuple[list[Thumb], ThumbCounts]:
    """The thumbs that count, in the order of their keys, and the account of them. `left_out`: rows that the caller kept
    back, by reason."""
    reasons = Counter(left_out)
    thumbs: list[Thumb] = []
    for row in rows:
        if row.feedback is None:
            continue
        if row.feedback == 0.5:
            reasons["contradictory feedback"] += 1
        elif not row.completion.strip():
            reasons["empty answer"] += 1
        else:
            key = f"{row.trace_id}\x1f{row.observation_id}"
            thumbs.append(Thumb(key, row.user_id, row.prompt, row.completion, row.feedback > 0.5))
    kept = _capped(thumbs, settings)
    reasons["over a user's share"] += len(thumbs) - len(kept)
    by_user = Counter(thumb.user for thumb in kept)
    counts = ThumbCounts(
        thumbs=len(kept),
        users=len(by_user),
        up=share(sum(thumb.up for thumb in kept), len(kept)),
        largest_user_share=max(by_user.values(), default=0) / max(1, len(kept)),
        left_out={reason: n for reason, n in sorted(reasons.items()) if n},
    )
    return kept, counts


def split_by_user(thumbs: Sequence[Thumb], settings: RewardModelSettings) -> dict[str, UserPart]:
    """The part of each user. The held-out users are drawn first, so that another share of validation moves none."""
    users = sorted({thumb.user for thumb in thumbs}, key=lambda user: _turn(settings.seed, user))
    held_out = round(len(users) * settings.held_out_users)
    validation = held_out + round((len(users) - held_out) * settings.validation_users)
    return {
        user: "held_out" if at < held_out else "validation" if at < validation else "train"
        for at, user in enumerate(users)
    }


def too_little(thumbs: Sequence[Thumb], parts: Mapping[str, UserPart]) -> str:
    """Why nothing can be trained on these, in words that end in what is missing; "" where it can."""
    users = len(parts)
    if len(thumbs) < LEAST_THUMBS:
        return f"{len(thumbs)} thumbs, and at least {LEAST_THUMBS} are needed: {LEAST_THUMBS - len(thumbs)} are missing"
    if users < LEAST_USERS:
        return f"{len(thumbs)} thumbs of {users} users, and at least {LEAST_USERS} users are needed to hold some out"
    for part in ("train", "validation", "held_out"):
        of_part = [thumb.up for thumb in thumbs if parts[thumb.user] == part]
        ups, downs = sum(of_part), len(of_part) - sum(of_part)
        least = LEAST_OF_A_CLASS if part == "train" else 1
        if part != "validation" and min(ups, downs) < least:
            whose = "users to train on" if part == "train" else "held-out users"
            return (
                f"{ups} thumbs up and {downs} thumbs down of the {whose}, and at least {least} of each are needed: "
                f"{'thumbs down' if downs < ups else 'thumbs up'} are missing"
            )
        if not of_part:
            return "no thumb of a user to choose the epoch by: raise rewards.reward_model.validation_users"
    return ""


def _capped(thumbs: Sequence[Thumb], settings: RewardModelSettings) -> list[Thumb]:
    """Levels fall until what they let through is so much that they hold."""
    users = len({thumb.user for thumb in thumbs})
    most = max(settings.max_user_share, 2 / users) if users else 1.0
    drawn = sorted(thumbs, key=lambda thumb: _turn(settings.seed, thumb.key))
    level = len(thumbs)
    while True:
        taken: Counter[str] = Counter()
        kept: list[Thumb] = []
        for thumb in drawn:
            if taken[thumb.user] < level:
                taken[thumb.user] += 1
                kept.append(thumb)
        allowed = max(1, int(most * len(kept)))
        if allowed >= level:
            return sorted(kept)
        level = allowed


def digest_of(thumbs: Sequence[Thumb]) -> str:
    """sha256 over the rows, in their order."""
    digest = hashlib.sha256()
    for thumb in thumbs:
        digest.update(json.dumps(thumb).encode() + b"\n")
    return digest.hexdigest()


def _turn(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}\x1f{name}".encode()).hexdigest()
