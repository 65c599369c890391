"""What the reward model says of itself: its report, which is the record of the asset `reward_model`."""

from __future__ import annotations

from pipeline.core.estimate import UNKNOWN, Estimate
from pipeline.core.storage import ModelRef, Record


class ThumbCounts(Record):
    """The thumbs that a reward model had."""

    thumbs: int = 0
    """Those that counted, of all users."""
    users: int = 0
    """Users behind them: the user, else the session, else the trace itself."""
    up: Estimate = UNKNOWN
    """Share of thumbs up."""
    largest_user_share: float = 0.0
    """Of the thumbs, that of the user with most of them."""
    left_out: dict[str, int] = {}  # noqa: RUF012 (a pydantic field: copied for each instance)
    """Rows with feedback that did not count, by reason."""


class UserSplit(Record):
    """Thumbs and users of each part; no user is in two."""

    trained: tuple[int, int]
    """Thumbs and users that the weights were trained on."""
    validation: tuple[int, int]
    """Those that chose the epoch."""
    held_out: tuple[int, int]
    """Those that measure."""


class CalibrationBin(Record):
    """Held-out thumbs whose score lies in one tenth of [0, 1]."""

    low: float
    high: float
    n: int
    mean_score: float
    up: float
    """Share of thumbs up among them."""


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
    """The folder that `open_scorer` takes: encoder, head, tokenizer, card. None: there is no reward model."""
    reason: str = ""
    """Why there is none: `none: ...` where the recipe asks for none, `not trained: ...` where thumbs do not suffice."""
    admitted: bool = False
    """Whether its word counts: every figure of the rule holds."""
    reasons: tuple[str, ...] = ()
    """The rule's figures that do not hold, each with what was measured; empty for an admitted model."""
    counts: ThumbCounts = ThumbCounts()
    split: UserSplit | None = None
    auc: Estimate = UNKNOWN
    """Against held-out users' thumbs. 95% interval: percentiles of a bootstrap over users. `n`: thumbs. It is capped by
    the noise of the thumbs, so it is no measure of quality by itself."""
    within: Estimate = UNKNOWN
    """Share of pairs of one prompt's answers, of which a held-out user liked one and disliked the other, that are
    ordered right. `n`: pairs; a bootstrap over prompts."""
    calibration_error: float | None = None
    """Expected calibration error on held-out users' thumbs, over ten equal bins (ECE)."""
    calibration: tuple[CalibrationBin, ...] = ()
    probes: tuple[ProbeResult, ...] = ()
    epoch: int = 0
    """The epoch whose weights stayed, from 1."""
    validation_losses: tuple[float, ...] = ()
    """Binary cross-entropy on the validation users, after each epoch."""
    base: ModelRef | None = None
    """What it was trained from."""
    labels_digest: str = ""
    """Of the label table that has the thumbs."""
    rows_digest: str = ""
    """Of the rows that it was trained on, chosen and measured by."""
    users_hash: str = ""
    """sha256 over the marks of the users that it was trained on, for lineage: no id can be read from it."""
    seconds: float = 0.0

    @property
    def failed_probes(self) -> tuple[str, ...]:
        """Names of the probes that do not pass: what another scorer, a rubric, would have to cover."""
        return tuple(probe.name for probe in self.probes if not probe.passes)
