"""The thumbs that a reward model may learn from, who of the users trains, chooses and measures, and its records: the
report of the asset `reward_model`, and what its process is given. Users are split, never rows, by a hash of seed and
user."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

from pipeline.core.estimate import UNKNOWN, Estimate
from pipeline.core.storage import ModelRef, Record
from pipeline.recipe.rewards import RewardModelSettings, Weights

NEVER_RETRY = 64
"""The training process's exit code where its base is at fault."""
UserPart = Literal["train", "validation", "held_out"]
"""Who of the users trains, chooses the epoch, or measures."""
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
    def up(self) -> bool:
        return self.feedback > 0.5


class AnsweredChat(NamedTuple):
    """An answer to score. `finished`: it ended with its end token; one that was cut at a limit is worth 0."""

    messages: Sequence[dict[str, Any]]
    completion: str
    finished: bool = True


class ThumbCounts(Record):
    """The thumbs that a reward model had."""

    thumbs: int = 0
    """Those that counted, of all users."""
    users: int = 0
    """Users behind them: the user, else the session, else the trace itself."""
    left_out: dict[str, int] = {}  # noqa: RUF012 (a pydantic field: copied for each instance)
    """Rows with feedback that did not count, by reason."""


class ProbeResult(Record):
    """One probe: pairs of an answer that a held-out user liked and its violating twin."""

    name: str
    kind: str
    ordered_right: Estimate
    """Share of pairs whose answer is scored over its twin; equal scores are wrong. `n`: pairs."""
    passes: bool
    """The lower bound reaches `min_probe`."""


class RewardModelReport(Record):
    """The reward model of an iteration, or why there is none."""

    iteration: str
    model: ModelRef | None = None
    """The folder that `open_scorer` takes: encoder, head, tokenizer. None: there is no reward model."""
    reason: str = ""
    """Why there is none: `none: ...` where the recipe asks for none, `not trained: ...` where thumbs do not suffice."""
    admitted: bool = False
    """Whether its word counts: every figure of the rule holds."""
    reasons: tuple[str, ...] = ()
    """The rule's figures that do not hold, each with what was measured; empty for an admitted model."""
    counts: ThumbCounts = ThumbCounts()
    auc: Estimate = UNKNOWN
    """Against held-out users' thumbs. 95% interval: percentiles of a bootstrap over users. `n`: thumbs. It is capped by
    the noise of the thumbs, so it is no measure of quality by itself."""
    probes: tuple[ProbeResult, ...] = ()
    base: ModelRef | None = None
    """What it was trained from."""
    seconds: float = 0.0
    """Of its making, which the bill counts as time of a device."""

    @property
    def failed_probes(self) -> tuple[str, ...]:
        """Names of the probes that do not pass: what another scorer, a rubric, would have to cover."""
        return tuple(probe.name for probe in self.probes if not probe.passes)

    def counts_beside(self, weights: Weights) -> bool:
        """Whether the model's word enters a reward of these weights: it is admitted, or it lacks nothing but probes and
        another scorer, which may see what it does not, has a weight too."""
        covered = weights.judge > 0 or weights.custom > 0
        return self.admitted or (covered and 0 < len(self.reasons) == len(self.failed_probes))


class TrainingRow(NamedTuple):
    """A thumb of a user of the part; an answer of a probe, which is only scored, has none of the three."""

    prompt: str
    completion: str
    user: str = ""
    up: bool = False
    part: UserPart | None = None


class RewardModelJob(Record):
    """One training; the weights go to the folder `target`."""

    base: str
    target: str
    rows: tuple[TrainingRow, ...]
    settings: RewardModelSettings


class RewardModelOutcome(Record):
    """What the process came to."""

    not_trained: str = ""
    scores: dict[int, float | None] = {}  # noqa: RUF012 (a pydantic field: copied for each instance)
    """Of the held-out thumbs and the probes, by the row's place."""
    unusable: dict[str, int] = {}  # noqa: RUF012
    """Thumbs that could not be read by the model, by reason."""


def thumbs_of(rated: Sequence[Thumb], left_out: Mapping[str, int]) -> tuple[list[Thumb], ThumbCounts]:
    """The thumbs that count, in the order of their keys, and the account of them. `left_out`: rows that the caller kept
    back, by reason."""
    clear = [thumb for thumb in rated if thumb.feedback != 0.5]
    thumbs = sorted((thumb for thumb in clear if thumb.completion.strip()), key=lambda thumb: thumb[:2])
    reasons = {
        **left_out,
        "contradictory feedback": len(rated) - len(clear),
        "empty answer": len(clear) - len(thumbs),
    }
    counts = ThumbCounts(
        thumbs=len(thumbs),
        users=len({thumb.user_id for thumb in thumbs}),
        left_out={reason: n for reason, n in sorted(reasons.items()) if n},
    )
    return thumbs, counts


def split_by_user(thumbs: Sequence[Thumb], settings: RewardModelSettings) -> dict[str, UserPart]:
    """The part of each user. The held-out users are drawn first, so that another share of validation moves none."""
    salted = {thumb.user_id: f"{settings.seed}\x1f{thumb.user_id}".encode() for thumb in thumbs}
    users = sorted(salted, key=lambda user: hashlib.sha256(salted[user]).digest())
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
