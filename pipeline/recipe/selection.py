"""Recipe sections `samples` and `selection`: what is drawn, and what evidence a method needs (selection/choose.py)."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field, PositiveInt

from pipeline.recipe.methods import MethodName
from pipeline.recipe.section import Section, Share
from pipeline.recipe.serving import AnyServing, TransformersServing


class Samples(Section):
    prompts: PositiveInt = 512
    """Logged prompts that are answered again, at most; a hash chooses them, within `selection.max_principal_share`."""
    per_prompt: Annotated[int, Field(ge=2, le=64)] = 8
    """Completions of each. Pairs, winners and the gain of the best of them all need at least two."""
    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    """Of the draw; at 0 all completions of a prompt would be one."""
    max_completion_tokens: PositiveInt = 512
    """A completion that has not ended by then is worth 0 where no reference can check it."""
    max_tokens: PositiveInt | None = 20_000_000
    """Budget of drawn tokens; prompts are left out until all completions at their longest fit. null: no limit."""
    seed: ClassVar[int] = 0
    """Decides prompts and completions."""
    serving: AnyServing = TransformersServing()
    """What answers: see evaluation.serving. An endpoint is asked under its name for the champion."""


class Selection(Section):
    method: Literal["auto", MethodName] = "auto"
    """`auto` decides from evidence; a forced method is recorded as forced."""
    chosen_min: Share = 0.7
    """Least reward of the chosen completion of a pair (seed 002)."""
    rejected_max: Share = 0.5
    """The reward of the rejected completion of a pair is strictly below it (seed 002)."""
    margin_min: ClassVar[float] = 0.2
    """Least difference of the two rewards of a pair."""
    min_prompts: PositiveInt = 100
    """GRPO: verifiable prompts on the learning frontier, at least: neither always right nor always wrong."""
    min_verifiable_share: ClassVar[float] = 0.5
    """GRPO: share of prompts whose reward can be recomputed on a fresh completion."""
    max_zero_variance_share: Share = 0.8
    """GRPO: expected share of groups that are all right or all wrong, which carry no gradient, at most."""
    min_pairs: PositiveInt = 200
    """DPO: usable pairs. 2,000 is the seed's figure for a 7B model and upwards."""
    max_label_noise: ClassVar[float] = 0.25
    """DPO: expected share of pairs the wrong way round, beyond which they mislead."""
    min_thumbs: ClassVar[int] = 200
    """KTO: answers that people clearly liked or did not, at least."""
    min_rarer_thumb: ClassVar[float] = 0.1
    """KTO: share of the rarer kind among the thumbs, at least."""
    min_feedback_auc: ClassVar[float] = 0.52
    """KTO: lower 95% bound of the reward model's AUC on the thumbs of users that it never saw; 0.5 is chance."""
    min_winners: PositiveInt = 100
    """SFT: prompts with a best answer among fresh samples, at least."""
    min_best_gain: ClassVar[float] = 0.01
    """SFT: lower 95% bound of what the best of k by one scorer is worth to another, over the mean of the k."""
    max_pairs_per_prompt: ClassVar[int] = 1
    """Pairs of one prompt, those with the largest differences first."""
    max_principal_share: Share = 0.01
    """One user's share of the pairs, and of the thumbs, against poisoning."""
    max_tenant_share: ClassVar[float] = 0.25
    """One tenant's share of the pairs, and of the thumbs, where there are several tenants."""
    imported_share: Share = 1.0
    """Largest share that imports make up of the pairs, of the thumbs and of the best answers, where traces or fresh
    samples give some; a hash decides what is left out. 1: all of the imports' are taken."""
    curriculum_attempts: ClassVar[int] = 3
    """Verified attempts from which a prompt that was always right, or always wrong, is left out of GRPO's prompts."""
    held_out_share: Share = 0.05
    """Share of the prompts kept from training, each with all that are near-identical, to watch its progress with."""
    tools: Literal["train", "leave_out"] = "train"
    """Rows with tools: trained on, which needs a chat template that renders them; or left out, counted."""
    max_contamination: ClassVar[float] = 0.01
    """Share of traces that ask an evaluation's questions above which nothing is built: the split is broken."""
