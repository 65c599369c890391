"""An iteration as a run of MLflow: what the evaluation registers, and what a training that stopped itself leaves."""

from assets.card import IterationRecords, card_sections
from assets.resources import Deployment
from evals import report
from evals.gate import GateVerdict
from pipeline.iteration import Iteration
from pipeline.pinning import pinned
from pipeline.plots import rewards as reward_plots
from pipeline.plots import traces as traces_plots
from pipeline.plots import training as training_plots
from pipeline.registry import versions
from pipeline.rollout.record import JudgedCandidate


def on_record(
    deployment: Deployment, iteration: Iteration, records: IterationRecords, verdict: GateVerdict | None = None
) -> versions.RecordedVersion:
    """The iteration as a run of MLflow, with a version if its verdict is PASS; a training that stopped has none."""
    trained = records.trained
    images = {
        "gates": traces_plots.funnel(records.traces.seen, records.rejected, records.traces.admitted),
        "rewards": reward_plots.reward_distribution(records.labels.histogram, records.labels.mean_reward),
        "training": training_plots.training_curve(trained.metrics),
        "health": training_plots.health_panels(trained.metrics, trained.health.findings),
        "step_time": training_plots.step_time(trained.metrics),
        "goodput": training_plots.goodput_bar(trained.goodput),
    }
    return versions.record(
        deployment.tracking_uri(),
        deployment.store(),
        iteration,
        trained.checkpoint,
        judged(verdict) if verdict else JudgedCandidate("STOP", trained.checkpoint.model.digest, ""),
        versions.RunContents(
            params=pinned(deployment.store(), iteration).model_dump(mode="json"),
            metrics=records.metrics,
            plots={**images, "evaluation": report.picture(records.report)} if records.report else images,
            card=card_sections(records, verdict),
            code_version=deployment.code_version(),
            tags=records.tags,
        ),
    )


def judged(verdict: GateVerdict) -> JudgedCandidate:
    """The verdict as the registry takes it."""
    return JudgedCandidate(str(verdict.verdict), verdict.candidate.digest, verdict.bundle_digest)
