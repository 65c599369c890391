"""Which scorers reward completions without a reference, and which one watches held-out prompts, where a policy that
learns to please its reward shows first (arXiv 2210.10760): the one that the reward weighs least."""

from pipeline.core import layout
from pipeline.core.storage import ModelRef, Record
from pipeline.recipe.training import ScorerName
from pipeline.rewards.judge.session import judge_id
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.traces.context import IterationContext

SCORERS: tuple[ScorerName, ...] = ("judge", "reward_model", "custom")


class FreshScorers(Record):
    """The scorers of a training."""

    reward: tuple[ScorerName, ...]
    """Those that the reward of a completion is composed of, with the rules."""
    watching: ScorerName
    """Scores the answers to held-out prompts."""
    reward_model: ModelRef | None = None
    """The iteration's own, where it rewards or watches."""

    @property
    def ask_judge(self) -> bool:
        return "judge" in (*self.reward, self.watching)


def scorers_of(context: IterationContext) -> FreshScorers:
    """The scorers of a training on completions without references. Raises ValueError for what the recipe or the
    iteration lacks."""
    rewards, training = context.recipe.rewards, context.recipe.training
    configured: list[ScorerName] = [name for name in SCORERS if getattr(rewards, name) is not None]
    reward: tuple[ScorerName, ...] = tuple(name for name in configured if getattr(rewards.fresh, name) > 0)
    problem = ""
    if training.engine != "trl":
        problem = f"training.engine {training.engine} has no second scorer. Set trl"
    elif not reward:
        problem = "rewards.fresh weighs no scorer that the recipe has. Add rewards.judge or rewards.reward_model"
    elif not training.validation.every_steps or not training.checkpoints.keep_best:
        problem = (
            "a second scorer has to watch held-out prompts, and the checkpoint that it likes best stays. Set "
            "training.validation.every_steps and training.checkpoints.keep_best"
        )
    if problem:
        raise ValueError(f"The prompts have no reference answers, and {problem}, or train by another method.")
    watching = min(configured, key=lambda name: getattr(rewards.fresh, name))
    if reward == (watching,):
        raise ValueError(
            f"rewards.fresh pays by {watching} alone, and nothing else could watch the training. Add a second scorer "
            f"({', '.join(name for name in SCORERS if name != watching)}) to rewards, or train by another method."
        )
    used = {*reward, watching}
    admitted = rewards.judge is None or any(context.store.path(layout.JUDGES, judge_id(rewards.judge)).glob("*.json"))
    if "judge" in used and not admitted:
        raise ValueError(
            "The judge of rewards.judge was never admitted. Weigh it in rewards.judged or rewards.fresh, and make the "
            "labels and samples again, so that it is examined before it scores a training."
        )
    model = _admitted_model(context) if "reward_model" in used else None
    return FreshScorers(reward=reward, watching=watching, reward_model=model)


def _admitted_model(context: IterationContext) -> ModelRef:
    report = context.store.read(context.iteration.path(layout.REWARD_MODEL), RewardModelReport)
    if report is None or report.model is None or not report.counts_beside(context.recipe.rewards.fresh):
        why = "it is not there" if report is None else report.reason or "; ".join(report.reasons)
        raise ValueError(
            f"The iteration's reward model may not score a training: {why}. Take it out of rewards, or "
            "collect what it lacks."
        )
    return report.model
