"""The reward model's records: its report, which is that of the asset `reward_model`, and what its process is given."""

from typing import Literal

import pyarrow as pa

from pipeline.core.estimate import UNKNOWN, Estimate
from pipeline.core.storage import ModelRef, Record
from pipeline.recipe.rewards import RewardModelSettings, Weights

JOB_FILE, RESULT_FILE, ROWS_FILE, MODEL_FOLDER = "job.json", "trained.json", "rows.parquet", "model"
NEVER_RETRY = 64
"""The training process's exit code where its base is at fault."""
UserPart = Literal["train", "validation", "held_out"]
"""Who of the users trains, chooses the epoch, or measures."""
PROBE = "probe"
"""The part of answers and twins that are only scored."""
ROWS = pa.schema(
    [
        ("user", pa.string()),  # null for a probe's
        ("prompt", pa.string()),  # chat messages as JSON
        ("completion", pa.string()),
        ("up", pa.bool_()),  # null for a probe's
        ("part", pa.string()),  # a UserPart or PROBE
    ]
)


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


class CalibrationBin(Record):
    """Held-out thumbs whose score lies in one tenth of [0, 1]."""

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
    """The folder that `open_scorer` takes: encoder, head, tokenizer. None: there is no reward model."""
    reason: str = ""
    """Why there is none: `none: ...` where the recipe asks for none, `not trained: ...` where thumbs do not suffice."""
    admitted: bool = False
    """Whether its word counts: every figure of the rule holds."""
    reasons: tuple[str, ...] = ()
    """The rule's figures that do not hold, each with what was measured; empty for an admitted model."""
    counts: ThumbCounts = ThumbCounts()
    split: dict[UserPart, tuple[int, int]] = {}  # noqa: RUF012
    """Thumbs and users of each part; no user is in two."""
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

    def counts_beside(self, weights: Weights) -> bool:
        """Whether the model's word enters a reward of these weights: it is admitted, or it lacks nothing but probes and
        another scorer, which may see what it does not, has a weight too."""
        covered = weights.judge > 0 or weights.custom > 0
        return self.admitted or (covered and 0 < len(self.reasons) == len(self.failed_probes))


class RewardModelJob(Record):
    """One training: `rows` are of ROWS, the weights go to `target`, and RESULT_FILE beside the job's own file."""

    base: str
    rows: str
    target: str
    settings: RewardModelSettings


class RewardModelOutcome(Record):
    """What the process came to."""

    not_trained: str = ""
    epoch: int = 0
    validation_losses: tuple[float, ...] = ()
    scores: dict[int, float | None] = {}  # noqa: RUF012 (a pydantic field: copied for each instance)
    """Of the held-out thumbs and the probes, by the row's place."""
    unusable: dict[str, int] = {}  # noqa: RUF012
    """Thumbs that could not be read by the model, by reason."""
    split: dict[UserPart, tuple[int, int]] = {}  # noqa: RUF012
    """Thumbs and users of each part that were used."""
