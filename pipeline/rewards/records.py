"""What the reward stage says: components, findings, the label table and its summary. `absent`: the component does not
apply; any other reason: it should have spoken and could not."""

from typing import NamedTuple

import pyarrow as pa

from pipeline.core.estimate import Estimate
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
        (
            "profile",
            pa.string(),
        ),  # verified, rated or judged: which weights; imported, demonstrated: it brings its reward
        ("origin", pa.string()),  # of an imported row its import and licence; null for a trace's
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
    distinct: int
    """Different values."""
    mean: float | None
    missing: dict[str, int]


class JudgeReport(Record):
    """The judge of an iteration: who, what it did and what that cost. Empty where the recipe names none."""

    id: str = ""
    unasked: str = "judge_unasked"
    """Why it said nothing of a completion that it should have been asked about."""
    tokens: int = 0
    usd: float = 0.0


class RewardLabels(Record):
    """The label table and what a person wants to know of it first."""

    iteration: str
    dataset: DatasetRef
    """`uri` is a folder of Parquet files with the columns of LABELS."""
    labelled: int
    coverage: float
    """labelled / rows, in [0, 1]; of a prompt set without an answer yet there is nothing to cover: 1. It is of traces
    alone where there are any, as are the mean and the histogram: imports say nothing of what is served."""
    unlabelled: dict[str, int]
    """Rows without a label, by reason."""
    outcomes: dict[str, int]
    """Verifier outcomes; `no_reference`, `unshowable_call` and `unanswered` count rows that could not be verified."""
    mean_reward: float
    histogram: tuple[int, ...]
    """Labels in 20 equal bins of [0, 1]."""
    components: dict[str, ComponentSummary]
    human_noise: Estimate
    """Share of the labels that people reviewed on whose side of 0.5 they disagree."""
    checked: int
    """Verdicts computed for this table; the others were there from an earlier run or iteration."""
    remembered: int
    tokens: int
    usd: float
