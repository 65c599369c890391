"""Who scores what no reference can check, and who watches: decided with the plan, and refused there.

Rules. The reward is what `rewards.fresh` says, as for the samples of the iteration; whoever is weighed there must be
able to speak, for within a group all completions are held against one scale. A second scorer watches on held-out
prompts: a policy that learns to please its reward shows there first. It is the one that `training.validation.scorer`
names; else one that the reward does not weigh, else the one that it weighs least. A reward that is the watching
scorer's word alone is refused: nothing would be left to see over-optimisation by (Gao et al., arXiv 2210.10760).
"""

from __future__ import annotations

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Record
from pipeline.recipe import Rewards, Training
from pipeline.recipe.rewards import Weights
from pipeline.recipe.training import ScorerName
from pipeline.rewards.judge.session import judge_id
from pipeline.rewards.reward_model import RewardModelReport
from pipeline.rewards.reward_model.admission import counts_beside
from pipeline.traces.context import IterationContext

SCORERS: tuple[ScorerName, ...] = ("judge", "reward_model", "custom")


class FreshScorers(Record):
    """The scorers of a training."""

    reward: tuple[ScorerName, ...] = ()
    """Those that the reward of a completion without a reference is composed of, beside the rules; empty where the rows
    have references, or nothing is drawn."""
    watching: ScorerName
    """Scores the answers to held-out prompts."""
    reward_model: ModelRef | None = None
    """The iteration's own, where it rewards or watches."""

    @property
    def ask_judge(self) -> bool:
        return "judge" in (*self.reward, self.watching)


def scorers_of(context: IterationContext, on_scores: bool) -> FreshScorers | None:
    """The scorers of a training on completions without references (`on_scores`), or on others where the recipe names a
    second scorer. Raises ValueError for what the recipe or the iteration lacks."""
    rewards, training = context.recipe.rewards, context.recipe.training
    if not on_scores and training.validation.scorer is None:
        return None
    named: dict[ScorerName, object] = {
        "judge": rewards.judge,
        "reward_model": rewards.reward_model,
        "custom": rewards.custom,
    }
    configured: list[ScorerName] = [name for name in SCORERS if named[name] is not None]
    reward: tuple[ScorerName, ...] = (
        tuple(name for name in configured if getattr(rewards.fresh, name) > 0) if on_scores else ()
    )
    if on_scores:
        _refuse_uncarried(training, rewards, reward)
    watching = _watching(rewards.fresh, training, configured)
    if reward == (watching,):
        raise ValueError(
            f"rewards.fresh pays by {watching} alone, and nothing else could watch the training. Add a second scorer "
            f"({', '.join(name for name in SCORERS if name != watching)}) to rewards, or train by another method."
        )
    used = {*reward, watching}
    model = _admitted_model(context) if "reward_model" in used else None
    if "judge" in used:
        _refuse_unknown_judge(context)
    return FreshScorers(reward=reward, watching=watching, reward_model=model)


def _watching(weights: Weights, training: Training, configured: list[ScorerName]) -> ScorerName:
    chosen = training.validation.scorer
    if chosen is not None and chosen not in configured:
        raise ValueError(f"training.validation.scorer names {chosen}, and there is none: add rewards.{chosen}.")
    if chosen is None and not configured:
        raise ValueError("Nobody scores completions without a reference: add rewards.judge or rewards.reward_model.")
    return chosen or min(configured, key=lambda name: getattr(weights, name))


def _refuse_uncarried(training: Training, rewards: Rewards, reward: tuple[ScorerName, ...]) -> None:
    problem = ""
    if training.engine != "trl":
        problem = f"training.engine {training.engine} knows right and wrong alone. Set trl"
    elif not reward:
        problem = "rewards.fresh weighs no scorer that the recipe has. Add rewards.judge or rewards.reward_model"
    elif not training.validation.every_steps:
        problem = "a second scorer has to watch held-out prompts. Set training.validation.every_steps"
    elif not training.checkpoints.keep_best:
        problem = "the checkpoint that the second scorer likes best is what stays. Set training.checkpoints.keep_best"
    if problem:
        raise ValueError(f"The prompts have no reference answers, and {problem}, or train by another method.")


def _admitted_model(context: IterationContext) -> ModelRef:
    report = context.store.read(context.iteration.path(layout.REWARD_MODEL), RewardModelReport)
    weights = context.recipe.rewards.fresh
    if report is None or report.model is None or not counts_beside(report, weights):
        why = "it is not there" if report is None else report.reason or "; ".join(report.reasons)
        raise ValueError(
            f"The iteration's reward model may not score a training: {why}. Give it no weight in rewards.fresh, and "
            "another training.validation.scorer, or collect what it lacks."
        )
    return report.model


def _refuse_unknown_judge(context: IterationContext) -> None:
    """Raise ValueError unless this judge withstood its start-up gate, in this iteration or an earlier one."""
    assert context.recipe.rewards.judge is not None, "it is among the configured scorers"
    if not any(context.store.path(layout.JUDGES, judge_id(context.recipe.rewards.judge)).glob("*.json")):
        raise ValueError(
            "The judge of rewards.judge was never admitted: nobody asked it yet. Weigh it in rewards.judged or "
            "rewards.fresh, and make the labels and samples anew, so that it is examined before it scores a training."
        )
