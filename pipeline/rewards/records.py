"""What the reward stage says: components, findings, the label table and its summary. `absent`: the component does not
apply; any other reason: it should have spoken and could not."""

from typing import NamedTuple

import pyarrow as pa

from pipeline.core.estimate import UNKNOWN, Estimate
from pipeline.core.storage import DatasetRef, Record

COMPONENTS = (
    *("correct", "format", "length", "repetition", "feedback"),
    *("latency", "judge", "custom", "reward_model"),
)
LOGGED = tuple(name for name in COMPONENTS if name != "reward_model")
"""Components that may speak on a logged trace: the reward model learns from these labels, so it comes after them."""
ABSENT = "absent"


class Finding(NamedTuple):
    """Exactly one of the two is given: a value in [0, 1], or the reason why there is none."""

    value: float | None
    reason: str = ""


DOES_NOT_APPLY = Finding(None, ABSENT)

BINS = 20

LABELS = pa.schema(
    [
        ("trace_id", pa.string()),
        ("observation_id", pa.string()),
        ("day", pa.string()),
        ("timestamp", pa.timestamp("us", tz="UTC")),
        ("user_id", pa.string()),  # the principal: the user, else the session, else the trace itself
        ("tenant_id", pa.string()),  # null where a trace has none
        ("consent", pa.bool_()),
        ("prompt", pa.string()),  # chat messages as canonical JSON of role and content: equal prompts, equal strings
        ("completion", pa.string()),
        ("reference", pa.string()),
        ("verifier", pa.string()),  # the kind of check; null without a reference
        ("outcome", pa.string()),  # verifiers.Outcome, "no_reference", "unshowable_call" or "unanswered"
        ("answer", pa.string()),
        *((name, pa.float64()) for name in LOGGED),
        ("final_reward", pa.float64()),
        ("reason", pa.string()),  # why there is no final_reward; "" for a label
        ("profile", pa.string()),  # verified, rated or judged: which weights
        ("weights", pa.string()),  # JSON: the renormalised weight of each component with a value
        ("missing", pa.string()),  # JSON: component to reason, of those that should have spoken
        ("verifier_version", pa.string()),
        ("judge_id", pa.string()),  # digest of judge, rubric and prompt; null where it did not speak
        ("custom_id", pa.string()),  # digest of the user's own function; null where it was not called
        ("custom_detail", pa.string()),  # what it raised, or returned in place of a value; null without one
        ("tokens", pa.int64()),  # of all judges, over all that was asked for this label
        ("usd", pa.float64()),
    ]
)
"""One row a governed trace."""


class ComponentSummary(Record):
    """One component over all rows. `missing` counts reasons, `absent` among them."""

    count: int
    mean: float | None
    missing: dict[str, int]


class Agreement(Record):
    """Two components on the rows where both have a value. They agree where both are over 0.5, or neither is."""

    first: str
    second: str
    agree: Estimate


class Drift(Record):
    """The distribution of `final_reward` against that of the iteration before."""

    against: str
    """Id of the iteration before."""
    stability_index: float
    """Population stability index over the histogram's bins: under 0.1 little, over 0.25 much."""
    mean_change: float


class HumanAgreement(Record):
    """What people's reviews say of the labels."""

    rank_correlation: Estimate
    noise: Estimate
    """Share of reviewed labels on whose side of 0.5 people disagree."""
    reviews: int


class JudgeReport(Record):
    """The judge of an iteration: who, how it was admitted, what it did and what that cost. Empty where the recipe names
    none."""

    id: str = ""
    model: str = ""
    attacks: int = 0
    """Which it withstood at its admission, all that there are; 0 where it was never asked."""
    unasked: str = "judge_unasked"
    """Why it said nothing of a completion that it should have been asked about."""
    order: Estimate = UNKNOWN
    """Share of compared pairs on which it contradicts itself when their order is swapped."""
    asked: int = 0
    remembered: int = 0
    """Answers that were there already, from an earlier run or iteration."""
    tokens: int = 0
    usd: float = 0.0


class CustomReport(Record):
    """The user's own reward function on the rows of an iteration: how it answered, and whether it tells them apart."""

    id: str
    """Digest of its name and content."""
    scored: int
    """Rows with a value."""
    failed: dict[str, int]
    """Rows without one, by reason: timeouts, errors, values out of [0, 1], abstentions."""
    distinct: int
    """Different values."""


class RewardLabels(Record):
    """The label table and what a person wants to know of it first."""

    iteration: str
    dataset: DatasetRef
    """`uri` is a folder of Parquet files with the columns of LABELS."""
    labelled: int
    coverage: float
    """labelled / rows, in [0, 1]; of a prompt set without an answer yet there is nothing to cover: 1."""
    unlabelled: dict[str, int]
    """Rows without a label, by reason."""
    outcomes: dict[str, int]
    """Verifier outcomes; `no_reference`, `unshowable_call` and `unanswered` count rows that could not be verified."""
    profiles: dict[str, int]
    mean_reward: float
    histogram: tuple[int, ...]
    """Labels in 20 equal bins of [0, 1]."""
    components: dict[str, ComponentSummary]
    """Of components with a weight, or a value."""
    agreement: tuple[Agreement, ...]
    judge: JudgeReport | None
    custom: CustomReport | None = None
    """None where the recipe names no function."""
    humans: HumanAgreement
    drift: Drift | None
    """None for the first iteration."""
    set_aside: dict[str, int]
    """Rated traces whose feedback did not count, by reason."""
    checked: int
    """Verdicts computed for this table; the others were there from an earlier run or iteration."""
    remembered: int
    tokens: int
    usd: float
