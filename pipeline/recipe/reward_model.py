"""Recipe section `rewards.reward_model`: a scorer trained on users' thumbs, and the probes that it has to pass.

A probe turns a logged answer into a twin that breaks one rule of the product's policy and differs in nothing else. Owns
the kinds of probes and their fields. Refuses to make a twin: pipeline/rewards/reward_model/probes.py does, by kind.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt, field_validator

from pipeline.core.locations import Uri
from pipeline.recipe.section import Operational, Section, Share

ProbeName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,39}$")]
SomeText = Annotated[str, Field(min_length=1, max_length=2000)]


class AppendProbe(Section):
    """The answer with a sentence after it that the policy forbids: a promise, a link, an insult."""

    kind: Literal["append"]
    """Which kind of probe this is."""
    name: ProbeName
    """Unique among the probes: names its figure in the report. Lower case, digits, dash and underscore."""
    text: SomeText
    """What is put after the answer, with a space between. An answer that holds it already makes no pair."""


class SwapProbe(Section):
    """The answer with one fact of its prompt replaced by another of the same sort, from the same prompt."""

    kind: Literal["swap"]
    """Which kind of probe this is."""
    name: ProbeName
    """Unique among the probes."""
    value: Literal["row", "number", "entity"] = "row"
    """row: a word of one line of the prompt, by the word at the same place of another line with as many words.
    number: a number of the prompt by another. entity: a capitalised word of the prompt by another."""


class LengthenProbe(Section):
    """The answer, longer, and no better."""

    kind: Literal["lengthen"]
    """Which kind of probe this is."""
    name: ProbeName
    """Unique among the probes."""
    filler: str = Field(default="", max_length=2000)
    """What is put after the answer until it is long enough; "": the answer itself once more."""
    factor: float = Field(default=2.0, gt=1, le=10)
    """Length of the twin in characters, at least, over that of the answer."""


class RefuseProbe(Section):
    """A refusal in place of an answer that helped."""

    kind: Literal["refuse"]
    """Which kind of probe this is."""
    name: ProbeName
    """Unique among the probes."""
    text: SomeText = "I'm sorry, but I can't help with that."
    """The refusal."""


Probe = Annotated[AppendProbe | SwapProbe | LengthenProbe | RefuseProbe, Field(discriminator="kind")]


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
    head_rate: PositiveFloat = 10.0
    """The new head's learning rate over that of the model."""
    max_tokens: PositiveInt = 1024
    """Of a prompt with its answer; a longer one is neither trained on nor scored."""
    held_out_users: float = Field(default=0.25, gt=0, lt=0.9)
    """Share of the users whose thumbs only measure."""
    validation_users: float = Field(default=0.1, gt=0, lt=0.9)
    """Share of the other users whose thumbs only choose the epoch."""
    max_user_share: Share = 0.01
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
    probe_answers: PositiveInt = 200
    """Answers that held-out users liked, at most, of which each probe makes twins."""
    probes: tuple[Probe, ...] = (
        LengthenProbe(kind="lengthen", name="longer"),
        RefuseProbe(kind="refuse", name="refusal"),
    )
    """The product's policy, as twins of good answers that break it."""
    seed: int = Field(default=0, ge=0, lt=2**31)
    """Of the split by users and the order of the thumbs."""
    timeout_s: Annotated[PositiveFloat, Operational] = Field(default=3600.0, le=1e9)
    """Of the training process; then it is killed and the step fails."""
    threads: PositiveInt = 1
    """Compute threads on CPU."""
    scoring_batch_size: Annotated[PositiveInt, Operational] = 32
    """Completions that are scored at once."""

    @field_validator("probes")
    @classmethod
    def _named_once(cls, probes: tuple[Probe, ...]) -> tuple[Probe, ...]:
        names = [probe.name for probe in probes]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise ValueError(f"two probes are named {', '.join(twice)}: give each a name of its own")
        return probes
