"""A sentence for each stage of an iteration, alike wherever they are shown."""

from collections.abc import Iterator

from assets.records import IterationRecords
from evals.report import suite_sentences
from pipeline.views.iteration import decision_sentence, training_sentence


def stage_sentences(of: IterationRecords) -> Iterator[tuple[str, str]]:
    if (traces := of.traces) is not None:
        days = [day.day for day in traces.days] or ["no day"]
        text = f"{traces.admitted:,} of {traces.seen:,} rows admitted, {days[0]} to {days[-1]}"
        rejected = sorted(traces.rejected.items(), key=lambda item: -item[1])
        why = ", ".join(f"{count:,} {reason}" for reason, count in rejected)
        yield "traces", f"{text}; rejected: {why}" if why else text
    if (labels := of.labels) is not None:
        text = f"{labels.labelled:,} of {labels.dataset.rows:,} traces ({labels.coverage:.1%} coverage), mean reward "
        text += f"{labels.mean_reward:.3f}; {labels.checked:,} checked now, {labels.remembered:,} known before"
        yield "labels", f"{text}, {labels.usd:.2f} USD"
    if (scorer := of.reward_model) is not None and (scorer.model or scorer.counts.thumbs or scorer.counts.left_out):
        text = f"{'admitted' if scorer.admitted else 'not admitted'}, AUC {scorer.auc}"
        yield "reward model", "; ".join([text, *scorer.reasons]) if scorer.model else scorer.reason
    if (fresh := of.samples) is not None and fresh.dataset is not None:
        text = f"{fresh.labelled:,} fresh completions of {fresh.prompts:,} prompts are scored, mean "
        yield "samples", f"{text}{fresh.mean_reward:.3f}, best of each prompt {fresh.best_reward:.3f}"
    if of.plan is not None:
        yield "method", decision_sentence(of.plan.decision)
    if of.trained is not None:
        yield "training", training_sentence(of.trained)
    if of.report is not None:
        yield from suite_sentences(of.report)
    if of.verdict is not None:
        yield "verdict", of.verdict.sentence
    if of.version is not None:
        yield "registered", f"{of.version.name} version {of.version.version} (MLflow run {of.version.run_id})"
