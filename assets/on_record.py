"""An iteration as a run of MLflow: what the evaluation registers, and what a training that stopped itself leaves."""

import re
from pathlib import Path
from typing import Any

import dagster as dg

from assets.card import IterationRecords, card_sections
from assets.resources import Deployment
from evals import bundle, report
from evals.answer_table import answer_table
from evals.gate import GateVerdict
from pipeline.core.iteration import Iteration
from pipeline.recipe.pinning import pinned
from pipeline.registry import versions
from pipeline.registry.pages import run_page
from pipeline.registry.runs import RunIdentity
from pipeline.rollout.approval import account, proposer
from pipeline.rollout.record import JudgedCandidate
from pipeline.views import rewards as reward_plots
from pipeline.views import traces as traces_plots
from pipeline.views import training as training_plots

MLFLOW_RUN_TAG = "mlflow_run"
"""On a run of Dagster: the run of MLflow that its iteration is in."""
COMMIT = re.compile(r"[0-9a-f]{7,64}")


def on_record(
    deployment: Deployment,
    iteration: Iteration,
    records: IterationRecords,
    verdict: GateVerdict | None = None,
    run: dg.DagsterRun | None = None,
) -> versions.RecordedVersion:
    """The iteration as a run of MLflow, with a version if its verdict is PASS; a training that stopped has none. `run`:
    of Dagster, the one that puts it on record."""
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
        deployment.mlflow(),
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
            tables=_tables(deployment, iteration, records),
            tags={**records.tags, **(launch_tags(deployment, run) if run else {})},
        ),
    )


def _tables(deployment: Deployment, iteration: Iteration, records: IterationRecords) -> dict[str, dict[str, Any]]:
    """What was answered, item by item; nothing where nothing was evaluated, or its evidence is gone."""
    if records.report is None or not Path(records.report.bundle.uri).is_dir():
        return {}
    texts = deployment.recipe_of(iteration).answers_in_mlflow
    return {"answers": answer_table(bundle.read(Path(records.report.bundle.uri)), texts)}


def launch_tags(deployment: Deployment, run: dg.DagsterRun) -> dict[str, str]:
    """What a run of MLflow says of who launched the work, in which run of Dagster, and of the code's commit."""
    commit = deployment.code_version()
    named = {"mlflow.source.git.commit": commit} if COMMIT.fullmatch(commit) else {}
    return {"dagster.run_id": run.run_id, "mlflow.user": proposer(run.tags, account()), **named}


def run_links(deployment: Deployment, run: RunIdentity) -> dict[str, str | dg.UrlMetadataValue]:
    """The run for a page of Dagster, with a link where MLflow has pages."""
    page = run_page(deployment.tracking_uri(), run)
    return {"run": run.run_id, **({"run in MLflow": dg.MetadataValue.url(page)} if page else {})}


def judged(verdict: GateVerdict) -> JudgedCandidate:
    """The verdict as the registry takes it."""
    return JudgedCandidate(str(verdict.verdict), verdict.candidate.digest, verdict.bundle_digest, verdict.reasons)
