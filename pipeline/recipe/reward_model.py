"""Recipe section `rewards.reward_model`: a scorer trained on users' thumbs, and the probes that it has to pass."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator, model_validator

from pipeline.core.locations import Uri
from pipeline.recipe.section import Operational, Section, Share

ProbeName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]


class Probe(Section):
    """One rule of the product's policy, as a twin of a good answer that breaks it and differs in nothing else."""

    kind: Literal["append", "swap", "lengthen", "refuse"]
    """append: `text` after the answer, a sentence that the policy forbids. swap: one fact of the prompt replaced by
    another of its sort. lengthen: the answer longer and no better. refuse: a refusal in place of the answer."""
    name: ProbeName
    """Unique among the probes: names its figure in the report. Lower case, digits, dash and underscore."""
    text: str = Field(default="", max_length=2000)
    """What append puts after the answer; what lengthen repeats there, "": the answer itself; the refusal, "": a usual
    one."""
    value: Literal["row", "number", "entity"] = "row"
    """Of swap. row: a word of one line of the prompt, by the word at the same place of another line with as many words.
    number: a number of the prompt by another. entity: a capitalised word of the prompt by another."""
    factor: float = Field(default=2.0, gt=1, le=10)
    """Of lengthen: length of the twin in characters, at least, over that of the answer."""

    @model_validator(mode="after")
    def _says_what(self) -> Probe:
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
    max_user_share: ClassVar[float] = 0.01
    """Share of the thumbs that one user may have given, or twice an equal part where users are too few for it. Which of
    the rest count, no user can choose."""
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
    threads: ClassVar[int] = 1
    """Compute threads on CPU."""
    scoring_batch_size: ClassVar[int] = 32
    """Completions that are scored at once."""

    @field_validator("probes")
    @classmethod
    def _named_once(cls, probes: tuple[Probe, ...]) -> tuple[Probe, ...]:
        names = [probe.name for probe in probes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two probes are named {', '.join(twice)}: give each a name of its own")
        return probes
