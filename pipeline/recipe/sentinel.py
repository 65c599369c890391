"""Recipe section `training.sentinel`: the limits beyond which a training is held or stopped."""

from __future__ import annotations

from pydantic import Field, NonNegativeInt, PositiveFloat, PositiveInt

from pipeline.recipe.section import Section, Share


class Sentinel(Section):
    """Limits on the live metrics; pipeline/training/sentinel.py holds the rules. Ratios are to the first steps."""

    window: PositiveInt = 5
    """Steps that a rule averages over: one bad batch stops nothing."""
    warm_up: NonNegativeInt = 0
    """First steps in which only NaN stops."""
    accuracy_floor: Share = 0.5
    """Of the first accuracy; under it a training stops."""
    accuracy_fall: Share = 0.2
    """Share of the first accuracy whose loss turns any other sign into a stop."""
    accuracy_noise: Share = 0.1
    """A smaller fall of accuracy is none, whatever its share: a window of a few hundred completions says no more."""
    reward_rise: PositiveFloat = 0.25
    """In standard deviations of the first rewards: from here a reward that rises against accuracy is looked at."""
    kl_hold: PositiveFloat = 0.1
    """KL to the base model, per token, above which a training is held (seed 000: healthy 0.01 to 0.10)."""
    kl_stop: PositiveFloat = 0.5
    """The same above which it is stopped (seed 000)."""
    entropy_floor: Share = 0.3
    """Of the first steps' entropy; never an absolute threshold."""
    entropy_ceiling: float = Field(default=3.0, gt=1)
    """Of the first steps' entropy: a policy that dissolves into noise."""
    length_drift: PositiveFloat = 0.3
    """Share by which completions may grow or shrink."""
    prefix_share: Share = 0.2
    """Of completions to different prompts that begin with the same eight words, over the share at first."""
    distinct_floor: Share = 0.5
    """Of the first steps' distinct bigrams."""
    unanswered: Share = 0.2
    """Of completions that lost their final answer, or refuse, over the share at first."""
    abstained: Share = 0.2
    """Of completions without a reward, because their check failed."""
    zero_variance: Share = 0.8
    """Share of groups without a gradient."""
    truncated: Share = 0.2
    """Share of completions that are cut off at the length limit."""
    grad_norm: PositiveFloat = 10.0
    """Norm of the gradient above which, in every step of a window, a training is held (seed 000)."""
    component_share: Share = 0.7
    """Of the reward's variance, from one component other than correctness."""
