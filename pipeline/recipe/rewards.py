"""The recipe's section on rewards: what a completion is worth, who may say so, and what a check may cost; and the
reward model, a scorer that is trained on users' thumbs, with the probes that it has to pass."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import (
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

from pipeline.core.locations import Uri
from pipeline.recipe.custom import CustomReward
from pipeline.recipe.section import Operational, Section, Share

ProbeName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
VerifierKind = Literal["math", "exact", "normalised", "contains", "choice", "json_schema", "code", "calls"]


Weight = Annotated[float, Field(ge=0, le=1000)]
"""Weights count by their ratios alone; the bound keeps a sum of them finite."""
Price = Annotated[float, Field(ge=0, le=1e6)]
"""In US dollars; the bound keeps a bill finite."""


class Weights(Section):
    """One weight a component; 0 leaves it out. Renormalised over the components that apply to a trace."""

    correct: Weight = 0.0
    """The verifier's word on the answer."""
    format: Weight = 0.0
    """The answer stands where it was asked for."""
    length: Weight = 0.0
    """Within `rules.min_chars` and `rules.max_chars`."""
    repetition: Weight = 0.0
    """1 for a text that does not repeat itself, falling to 0."""
    feedback: Weight = 0.0
    """What users said, shrunk towards 0.5 while it is little."""
    latency: Weight = 0.0
    """1 for an immediate answer, 0 at `rules.slow_s`."""
    judge: Weight = 0.0
    """The judge's score of 1 to 5, as (score - 1) / 4."""
    custom: Weight = 0.0
    """The value of the function that `custom` names."""
    reward_model: Weight = 0.0
    """The word of `rewards.reward_model` on a fresh completion. It has none on logged ones: it learned from them."""


class Verifier(Section):
    """How an answer is checked against its reference. Shared with the evaluation."""

    kind: VerifierKind = "math"
    """Of references that do not say theirs."""
    kind_key: ClassVar[str] = "verifier"
    """Metadata key by which a trace names another kind."""
    timeout_s: PositiveFloat = 5.0
    """Per item, from the start of its execution; then that worker is killed."""
    code_timeout_s: ClassVar[float] = 10.0
    """The same for a completion whose tests are run."""
    code_memory_mb: ClassVar[int] = 512
    """Address space of a completion's own process."""
    sandbox: Literal["landlock", "rlimits"] = "landlock"
    """What confines code. landlock: limits, system call filter and Landlock; where the kernel lacks it (before Linux
    6.2) no code is run. rlimits: without Landlock, so that a completion can read the files that this process can."""
    memory_mb: PositiveInt = 3072
    """Address space of a worker."""
    workers: Annotated[PositiveInt, Operational] = 2
    """Checking processes of each process that checks."""


class Rules(Section):
    """Rules that need no reference."""

    min_chars: int = Field(default=50, ge=0)
    """Shortest length, in characters, that counts as reasonable (seed 001)."""
    max_chars: PositiveInt = 500
    """Longest length, in characters, that counts as reasonable (seed 001)."""
    slow_s: PositiveFloat = 30.0
    """Latency at which `latency` is worth 0."""


class Feedback(Section):
    """What users said, and how much of it counts."""

    prior_strength: NonNegativeFloat = 1.0
    """Imagined answers of 0.5 added to the real ones: one thumb up is worth 0.75, ten are worth 0.95."""
    tenant_key: str = "tenant_id"
    """Metadata key of the organisation that a user belongs to."""
    max_per_user: ClassVar[int] = 20
    """Rated traces of one user that count in a window. Which ones, no user can choose."""


DEFAULT_RUBRIC = """\
5: correct, complete and direct; nothing a careful expert would change.
4: correct, with a small omission or an awkward passage.
3: partly correct, or correct but hard to use.
2: mostly wrong, evasive or off the question.
1: wrong, empty, harmful, or not an answer."""


class TokenPrice(Section):
    """What a model's tokens cost, or what they would cost to buy."""

    usd_per_million_prompt_tokens: Price = 0.0
    """Price of what is sent."""
    usd_per_million_completion_tokens: Price = 0.0
    """Price of what is answered."""


class Judge(Section):
    """A model that scores completions. Any OpenAI-compatible endpoint: JUDGE_URL and JUDGE_API_KEY."""

    model: str
    """The name that the endpoint serves it under; every response must come from it."""
    digest: Annotated[str, Field(pattern=r"\S")]
    """Digest of its weights or image, as deployed: part of every label, and never one of the policy's own lineage."""
    rubric: str = DEFAULT_RUBRIC
    """What each score of 1 to 5 stands for."""
    concurrency: Annotated[PositiveInt, Operational] = 8
    """Requests in flight at once."""
    timeout_s: PositiveFloat = 60.0
    """From a request to the last byte of its response."""
    attempts: PositiveInt = 4
    """Of one request, with back-off between them, for what may pass: no connection, 429, 5xx."""
    max_completion_tokens: PositiveInt = 256
    """Length limit of the judge's answer."""
    max_text_chars: ClassVar[int] = 20_000
    """A longer prompt or completion is not sent."""
    max_response_bytes: ClassVar[int] = 1_000_000
    """A longer response is not read to its end, and the judge abstains."""
    max_tokens: PositiveInt | None = 20_000_000
    """Budget of an iteration, prompts and answers together; a request that could pass it is not made."""
    max_usd: NonNegativeFloat | None = None
    """The same in US dollars."""
    price: TokenPrice | None = None
    """The endpoint's price, for `max_usd` and the bill; null: not known."""
    skip_rated: bool = True
    """Where users have spoken the judge is not asked (the seed's cost rule)."""
    audits: ClassVar[int] = 50
    """Verified completions judged as well, for nothing but to see how often judge and verifier disagree."""


class Probe(Section):
    """One rule of the product's policy, as a twin of a good answer that breaks it and differs in nothing else."""

    kind: Literal["append", "swap", "lengthen", "refuse"]
    """append: `text` after the answer, a sentence that the policy forbids. swap: a word of one line of the
    prompt replaced by the word at its place in the next line with as many words. lengthen: the answer twice as long and
    no better. refuse: a refusal in place of the answer."""
    name: ProbeName
    """Unique among the probes: names its figure in the report. Lower case, digits, dash and underscore."""
    text: str = Field(default="", max_length=2000)
    """What append puts after the answer; what lengthen repeats there, "": the answer itself; the refusal, "": a usual
    one."""

    @model_validator(mode="after")
    def _says_what(self) -> Self:
        if self.kind == "append" and not self.text:
            raise ValueError(f"the probe {self.name} appends nothing. Give it the text that the policy forbids.")
        return self


class RewardModelSettings(Section):
    """How the reward model is trained on thumbs, and what it has to show before its word counts."""

    base: Uri | None = None
    """Directory of the model that it starts from; null: the iteration's champion."""
    epochs: PositiveInt = 3
    """Passes over the thumbs; the one that is best on the validation users stays."""
    batch_size: PositiveInt = 32
    """Thumbs of an optimiser step."""
    learning_rate: PositiveFloat = 4e-4
    """Of the model's own weights."""
    head_rate: ClassVar[float] = 10.0
    """The new head's learning rate over that of the model."""
    max_tokens: PositiveInt = 1024
    """Of a prompt with its answer; a longer one is neither trained on nor scored."""
    held_out_users: ClassVar[float] = 0.25
    """Share of the users whose thumbs only measure."""
    validation_users: ClassVar[float] = 0.1
    """Share of the other users whose thumbs only choose the epoch."""
    min_auc: Share = 0.6
    """Lower 95% bound of the AUC on held-out users' thumbs, to be admitted."""
    min_thumbs: NonNegativeInt = 1000
    """Thumbs, to be admitted."""
    min_users: NonNegativeInt = 100
    """Users behind them, to be admitted."""
    min_probe: Share = 0.9
    """Lower 95% bound of the share of each probe's pairs that are ordered right, to be admitted."""
    probe_answers: ClassVar[int] = 200
    """Answers that held-out users liked, at most, of which each probe makes twins."""
    probes: tuple[Probe, ...] = (
        Probe(kind="lengthen", name="longer"),
        Probe(kind="refuse", name="refusal"),
    )
    """The product's policy, as twins of good answers that break it."""
    seed: ClassVar[int] = 0
    """Of the split by users and the order of the thumbs."""
    timeout_s: Annotated[PositiveFloat, Operational] = Field(default=3600.0, le=1e9)
    """Of the training process; then it is killed and the step fails."""

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if len({probe.name for probe in self.probes}) < len(self.probes):
            raise ValueError("two probes have one name: give each a name of its own")
        return self


class Rewards(Section):
    """`final_reward` (pipeline/rewards/composite.py holds the rule): one set of weights for each kind of trace."""

    verified: Weights = Weights(correct=1.0, format=0.1, length=0.05)
    """With a reference answer (seed 001). All of it can be computed again on a fresh completion."""
    rated: Weights = Weights(judge=0.3, feedback=0.2, latency=0.05)
    """Without one, but with feedback of users (seed 000)."""
    judged: Weights = Weights(judge=1.0)
    """With neither."""
    fresh: Weights = Weights(judge=1.0)
    """Of a completion that was drawn just now and that no reference can check: no user has rated it."""
    min_weight: ClassVar[float] = 0.5
    """Share of the applying weight that must have answered; a label on less is none."""
    min_coverage: Share = 0.5
    """Share of admitted traces that need a label before anything is trained on them."""
    verifier: Verifier = Verifier()
    """How answers are checked against references."""
    rules: Rules = Rules()
    """Bounds of the rules that need no reference."""
    feedback: Feedback = Feedback()
    """Whose feedback counts, and how much."""
    judge: Judge | None = None
    """A model that scores completions; null: none is asked."""
    custom: CustomReward | None = None
    """A function of your own that scores completions; null: none is called."""
    reward_model: RewardModelSettings | None = None
    """A scorer trained on users' thumbs, for completions without a reference; null: none is trained."""
    review_rows: Annotated[PositiveInt, Operational] = 200
    """Labels drawn at random for a week's sheet, which people score, at most."""
    max_human_noise: ClassVar[float] = 0.25
    """Upper 95% bound of the share of reviewed labels on whose side people disagree; above it the labels carry a
    warning."""

    @model_validator(mode="after")
    def _custom_is_weighed(self) -> Self:
        weighed = any(weights.custom > 0 for weights in (self.verified, self.rated, self.judged, self.fresh))
        if weighed and self.custom is None:
            raise ValueError("a profile weighs `custom`, and no function is named. Set rewards.custom.code.")
        return self
