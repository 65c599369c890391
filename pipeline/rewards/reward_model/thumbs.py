"""Thumbs: which rated rows a reward model may learn from, and who of the users trains, chooses and measures. Users are
split, never rows, by a hash of seed and user."""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from pipeline.core.estimate import share
from pipeline.recipe.rewards import RewardModelSettings
from pipeline.rewards.reward_model.records import ThumbCounts, UserPart

LEAST_THUMBS = 40
"""Below it nothing is trained: there is not one batch to learn from and another to measure by."""
LEAST_USERS = 10
LEAST_OF_A_CLASS = 5
"""Thumbs up, and thumbs down, of the training users: fewer show nothing of what is liked."""


class Thumb(NamedTuple):
    """One rated answer. `user_id`: of the principal; `prompt`: chat messages as JSON; `feedback` in [0, 1]."""

    trace_id: str
    observation_id: str
    user_id: str
    prompt: str
    completion: str
    feedback: float

    @property
    def key(self) -> str:
        return f"{self.trace_id}\x1f{self.observation_id}"

    @property
    def up(self) -> bool:
        return self.feedback > 0.5


def thumbs_of(
    rated: Sequence[Thumb], settings: RewardModelSettings, left_out: Mapping[str, int]
) -> tuple[list[Thumb], ThumbCounts]:
    """The thumbs that count, in the order of their keys, and the account of them. `left_out`: rows that the caller kept
    back, by reason."""
    clear = [thumb for thumb in rated if thumb.feedback != 0.5]
    thumbs = [thumb for thumb in clear if thumb.completion.strip()]
    kept = _capped(thumbs, settings)
    reasons = {
        **left_out,
        "contradictory feedback": len(rated) - len(clear),
        "empty answer": len(clear) - len(thumbs),
        "over a user's share": len(thumbs) - len(kept),
    }
    by_user = Counter(thumb.user_id for thumb in kept)
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
    users = sorted({thumb.user_id for thumb in thumbs}, key=lambda user: _turn(settings.seed, user))
    held_out = round(len(users) * settings.held_out_users)
    validation = held_out + round((len(users) - held_out) * settings.validation_users)
    return {
        user: "held_out" if at < held_out else "validation" if at < validation else "train"
        for at, user in enumerate(users)
    }


def too_little(votes: Sequence[tuple[str, bool]], parts: Mapping[str, UserPart]) -> str:
    """Why nothing can be trained on these (user, up); "" where it can."""
    if len(votes) < LEAST_THUMBS or len(parts) < LEAST_USERS:
        return f"{len(votes)} thumbs of {len(parts)} users: at least {LEAST_THUMBS} of {LEAST_USERS} are needed"
    for part, least in (("train", LEAST_OF_A_CLASS), ("held_out", 1)):
        ups = [up for user, up in votes if parts[user] == part]
        if min(sum(ups), len(ups) - sum(ups)) < least:
            return (
                f"{sum(ups)} thumbs up and {len(ups) - sum(ups)} thumbs down of the users of the part {part}: at least "
                f"{least} of each are needed"
            )
    if not any(parts[user] == "validation" for user, _ in votes):
        return "no thumb of a user to choose the epoch by: it takes more users"
    return ""


def _capped(thumbs: Sequence[Thumb], settings: RewardModelSettings) -> list[Thumb]:
    """Levels fall until what they let through is so much that they hold."""
    users = len({thumb.user_id for thumb in thumbs})
    most = max(settings.max_user_share, 2 / users) if users else 1.0
    drawn = sorted(thumbs, key=lambda thumb: _turn(settings.seed, thumb.key))
    level = len(thumbs)
    while True:
        taken: Counter[str] = Counter()
        kept: list[Thumb] = []
        for thumb in drawn:
            if taken[thumb.user_id] < level:
                taken[thumb.user_id] += 1
                kept.append(thumb)
        allowed = max(1, int(most * len(kept)))
        if allowed >= level:
            return sorted(kept, key=lambda thumb: thumb.key)
        level = allowed


def digest_of(thumbs: Sequence[Thumb]) -> str:
    """sha256 over the rows, in their order."""
    digest = hashlib.sha256()
    for thumb in thumbs:
        row = [thumb.key, thumb.user_id, thumb.prompt, thumb.completion, thumb.up]
        digest.update(json.dumps(row).encode() + b"\n")
    return digest.hexdigest()


def _turn(seed: int, name: str) -> str:
    return hashlib.sha256(f"{seed}\x1f{name}".encode()).hexdigest()
