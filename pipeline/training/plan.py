"""The plan that a trainer is given: what is trained, on what, from which base, how, over how many processes. It names
content by digest."""

from collections.abc import Callable, Collection

from pipeline.core import layout
from pipeline.core.storage import DatasetRef, ModelRef, Record, digest_json
from pipeline.recipe import Rewards, TrainingSettings
from pipeline.recipe.methods import AnyMethod
from pipeline.recipe.section import Observer, Operational, joined, settings
from pipeline.recipe.training import ScorerName
from pipeline.rewards.judge.session import judge_id
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.selection.choose import MethodDecision, choose
from pipeline.selection.preferences import PreferenceDataset
from pipeline.traces.context import IterationContext
from pipeline.traces.erased import shared_lock
from pipeline.training.checkpoints.mirror import place_of, remember
from pipeline.training.schedule import Metadata, held_out_rows, schedule

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


class TrainingPlan(Record):
    """Everything that the trainer knows. `data` and `method` are None when the decision is not to train."""

    iteration: str
    decision: MethodDecision
    base: ModelRef
    data: DatasetRef | None
    """The rows of every step, in their order."""
    held_out: DatasetRef | None
    """Prompts with references that are not trained on, for `training.validation`; None without any."""
    without_consent: int
    """Rows of the dataset that were left out because consent was withdrawn since it was built."""
    method: AnyMethod | None
    """The chosen method's settings."""
    training: TrainingSettings
    rewards: Rewards
    nodes: int
    processes: int
    """On each node."""
    peak_tflops: float
    """Dense bf16, of one device."""
    scorers: FreshScorers | None = None
    """Who scores what has no reference; None where none does."""

    def trained_by(self) -> AnyMethod:
        """`method`. Raises ValueError when the decision is not to train."""
        if self.method is None:
            raise ValueError("The plan's decision is 'none': there is nothing to train.")
        return self.method

    @property
    def answer_kl_stop(self) -> float | None:
        """KL to the base model in nats an answer that stops the training; None: no such limit. A method that draws
        completions has one only where scorers reward them: a verifier is not fooled."""
        method = self.trained_by()
        return method.kl_stop if self.scorers is not None or method.group_size is None else None

    @property
    def judged_by(self) -> str:
        """The held-out metric that says which checkpoint is the best."""
        return "held_out/accuracy" if self.scorers is None else "held_out/second_score"

    @property
    def world_size(self) -> int:
        return self.nodes * self.processes

    def digest(self) -> str:
        """Identity of the training: whatever decides its bits; not where it lies, how often it saves, what watches it.
        Checkpoints of another plan don't fit."""
        assert self.data is not None, "a plan without training has no digest"
        scored_by: dict[str, object] = {}
        if self.scorers is not None:
            model = self.scorers.reward_model if "reward_model" in self.scorers.reward else None
            scored_by = {"reward": self.scorers.reward, "reward_model": model.digest if model else ""}
        return digest_json(
            {
                **settings(self.training, Operational, Observer),
                "method": settings(self.trained_by(), Operational, Observer),
                "rewards": settings(self.rewards, Operational),
                "base": self.base.digest,
                "data": self.data.digest,
                "world_size": self.world_size,
                **({"scorers": scored_by} if scored_by else {}),
            }
        )


def plan_training(
    context: IterationContext,
    dataset: PreferenceDataset,
    governed: Callable[[], Collection[tuple[str, str]]],
    metadata: Metadata = lambda trace_ids: {},
) -> TrainingPlan:
    """Decide the method and publish the plan with exactly the rows that the training will consume, in their order.

    `governed`: (trace_id, observation_id) of the rows that may be trained on now: the plan may be made much later than
    the dataset. `metadata`: of the traces behind its prompts, for the user's own reward function. Raises ValueError
    when no row has consent any more, and for a limit on KL that nothing would measure.
    """
    store, iteration, recipe = context.store, context.iteration, context.recipe
    training, rewards, compute = recipe.training, recipe.rewards, recipe.compute

    def make() -> TrainingPlan:
        group = next(filter(None, (each.group_size for each in training.by_name().values())))
        decision = choose(dataset.evidence, recipe.selection, rewards.min_coverage, group)
        method, data, held_out, scorers, dropped = None, None, None, None, 0
        if decision.method != "none":
            method = training.by_name()[decision.method]
            agreed = frozenset(trace for trace, _ in governed())
            data, dropped = schedule(context, dataset, method, agreed, metadata)
            on_scores = method.group_size is not None and not dataset.evidence.frontier_prompts
            scorers = _scorers_of(context) if on_scores else None
            held_out = held_out_rows(context, dataset, method, agreed, metadata, on_scores)
            if on_scores and held_out is None:
                raise ValueError(
                    "A second scorer has to watch held-out prompts without references, and there are none: raise "
                    "selection.held_out_share, or train by another method."
                )
        made = TrainingPlan(
            iteration=iteration.id,
            decision=decision,
            base=iteration.champion,
            data=data,
            held_out=held_out,
            without_consent=dropped,
            method=method,
            training=training.without_methods(),
            rewards=rewards,
            nodes=compute.nodes,
            processes=compute.processes,
            peak_tflops=compute.accelerator.peak_tflops,
            scorers=scorers,
        )
        if data is not None:
            _refuse_unmeasured(made)
        if training.engine == "nemo_rl" and data is not None:  # before nodes are asked for what it cannot express
            from pipeline.training.nemo.render import refuse  # which knows the plan

            refuse(made)
        return made

    with shared_lock(store):
        plan = store.once(iteration.path(layout.PLAN), TrainingPlan, make)
        placed = _placed(context, plan)
        if placed.data is not None and (mirror := placed.training.checkpoints.mirror):
            remember(store, iteration.id, place_of(mirror, placed.digest()))
        if placed != plan:
            store.write(iteration.path(layout.PLAN), placed)
        return placed


def _refuse_unmeasured(plan: TrainingPlan) -> None:
    """Raise ValueError for a limit on the KL of answers that no validation would measure."""
    method, limit, lacks = plan.trained_by(), plan.answer_kl_stop, ""
    if limit is None:
        return
    if plan.held_out is None:
        lacks = "is measured on held-out prompts: set training.validation.every_steps and selection.held_out_share"
    elif plan.training.lora is None and not method.keeps_reference:
        lacks = "is measured against the base model, which a training of all weights does not keep: set training.lora"
    if lacks:
        raise ValueError(f"training.{method.kind}.kl_stop {limit:g} {lacks}, or set kl_stop to null.")


def _placed(context: IterationContext, plan: TrainingPlan) -> TrainingPlan:
    """The plan with what the recipe says now of where and how safely it runs: that is no part of the iteration. The
    number of processes stays once there is a checkpoint: another one could not resume from it."""
    training, compute = context.recipe.training, context.recipe.compute
    update: dict[str, object] = {"training": joined(plan.training, training.without_methods())}
    if plan.method is not None:
        update["method"] = joined(plan.method, training.by_name()[plan.method.kind])
    if not any(context.store.path(context.iteration.path(layout.CHECKPOINTS)).glob("step-*")):
        update |= {"nodes": compute.nodes, "processes": compute.processes}
        update["peak_tflops"] = compute.accelerator.peak_tflops
    return plan.model_copy(update=update)


def _scorers_of(context: IterationContext) -> FreshScorers:
    """The scorers of a training on completions without references: those that the reward weighs, and the one that it
    weighs least to watch held-out prompts, where a policy that learns to please its reward shows first (arXiv
    2210.10760). Raises ValueError for what the recipe or the
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
