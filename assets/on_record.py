"""An iteration as a run of MLflow: what the evaluation registers, and what a training that stopped itself leaves."""

import re
from pathlib import Path
from typing import Any

import dagster as dg

from assets.records import CHECKPOINT, LABELS, REPORT, SAMPLES, TRACES, IterationRecords
from assets.resources import Deployment
from assets.sentences import stage_sentences
from evals import bundle, report
from evals.gate import GateVerdict
from evals.records import EvalReport
from k8s.attempts import Ledger
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.markdown import literal
from pipeline.recipe.pinning import pinned
from pipeline.registry import versions
from pipeline.registry.runs import RunIdentity, run_page
from pipeline.rollout.policy import account, proposer
from pipeline.rollout.record import JudgedCandidate
from pipeline.training.result import TrainingResult
from pipeline.views.iteration import funnel, reward_distribution, training_panels

MLFLOW_RUN_TAG = "mlflow_run"
"""On a run of Dagster: the run of MLflow that its iteration is in."""
COMMIT = re.compile(r"[0-9a-f]{7,64}")


def on_record(
    deployment: Deployment, iteration: Iteration, verdict: GateVerdict | None = None, run: dg.DagsterRun | None = None
) -> versions.RecordedVersion:
    """The iteration as a run of MLflow, with a version if its verdict is PASS; a training that stopped has no verdict.
    `run`: of Dagster, the one that puts it on record. Raises ValueError with the record that is missing."""
    store, id = deployment.store(), iteration.id
    traces, labels, trained = TRACES.read(store, id), LABELS.read(store, id), CHECKPOINT.read(store, id)
    samples, measured = SAMPLES.find(store, id), REPORT.read(store, id) if verdict is not None else None
    plots = {
        "gates": funnel(traces.seen, {str(why): n for why, n in traces.rejected.items()}, traces.admitted),
        "rewards": reward_distribution(labels.histogram, labels.mean_reward),
        "training": training_panels(trained.metrics, trained.health.findings),
        **({"evaluation": report.picture(measured)} if measured is not None else {}),
    }
    tables: dict[str, dict[str, Any]] = {}
    if measured is not None and Path(measured.bundle.uri).is_dir():  # else its evidence is gone
        texts = deployment.recipe_of(iteration).answers_in_mlflow
        tables = {"answers": report.answer_table(bundle.read(Path(measured.bundle.uri)), texts)}
    return versions.record(
        deployment.mlflow(),
        store,
        iteration,
        trained.checkpoint,
        verdict.judged if verdict else JudgedCandidate("STOP", trained.checkpoint.model.digest, ""),
        versions.RunContents(
            params=pinned(store, iteration).model_dump(mode="json"),
            metrics=[
                *trained.metrics,
                last_metrics(trained, store.read(iteration.path(layout.LEDGER), Ledger), measured),
            ],
            plots={name: plot.png() for name, plot in plots.items()},
            card=_card(deployment, iteration, measured, verdict),
            code_version=deployment.code_version(),
            tables=tables,
            tags={
                "health": trained.health.verdict,
                **{f"health.{e.rule}": f"{e.verdict} at step {e.step}: {e.reason}" for e in trained.health.findings},
                **(samples.provenance if samples else {}),
                **(launch_tags(deployment, run) if run else {}),
            },
        ),
    )


def last_metrics(trained: TrainingResult, account: Ledger | None, measured: EvalReport | None) -> dict[str, float]:
    """Where the time of a training and its money went, and the held-out figures: a point at its last step."""
    goodput = trained.goodput
    last = {
        "step": max([float(trained.checkpoint.step), *(row["step"] for row in trained.metrics)]),
        "goodput/share": goodput.share,
        "goodput/total_s": goodput.total_s,
        "goodput/productive_s": goodput.productive_s,
        **{f"goodput/badput_{cause}_s": seconds for cause, seconds in goodput.badput_s.items()},
    }
    if account is not None:
        last |= {"cost/usd_low": account.usd.low, "cost/usd_high": account.usd.high}
        last |= {"cost/device_hours": account.device_hours}
    for suite in measured.measurements if measured else ():
        if compared := suite.comparison:
            gain = compared.difference
            figures = {"champion": compared.champion.value, "candidate": compared.candidate.value}
            figures |= {"difference": gain.value, "difference_low": gain.low, "difference_high": gain.high}
            last |= {f"held_out/{suite.suite}/{name}": value for name, value in figures.items()}
    for suite in measured.judged if measured else ():
        if rate := suite.win_rate:
            even = rate.controlled
            figures = {"": even.value, "_low": even.low, "_high": even.high, "_raw": rate.raw.value}
            last |= {f"judged/{suite.suite}/win_rate{name}": 0.5 + value for name, value in figures.items()}
    return last


def _card(
    deployment: Deployment, iteration: Iteration, measured: EvalReport | None, verdict: GateVerdict | None
) -> dict[str, str]:
    """The sections of the model card, in Markdown. Without a verdict nothing was evaluated."""
    evaluated = "Not evaluated: the training stopped itself, and these are the best weights that it had before."
    if measured is not None and verdict is not None:
        evaluated = f"{report.table(measured, verdict)}\n\nVerdict: **{verdict.verdict}**."
    stages = stage_sentences(IterationRecords(deployment.store(), iteration.id))
    lines = [f"- **{name}**: {literal(text)}" for name, text in stages]
    return {
        "Data": "\n".join(["Production traces with the users' consent, personal data masked.", "", *lines]),
        "Evaluation": evaluated,
        "Intended use": "The same traffic as the champion's that the traces come from; nothing else was measured.",
        "Limits": report.limits(measured.section, measured.not_asked) if measured else "Nothing was measured.",
    }


def launch_tags(deployment: Deployment, run: dg.DagsterRun) -> dict[str, str]:
    """What a run of MLflow says of who launched the work, in which run of Dagster, and of the code's commit."""
    commit = deployment.code_version()
    named = {"mlflow.source.git.commit": commit} if COMMIT.fullmatch(commit) else {}
    return {"dagster.run_id": run.run_id, "mlflow.user": proposer(run.tags, account()), **named}


def run_links(deployment: Deployment, run: RunIdentity) -> dict[str, str | dg.UrlMetadataValue]:
    """The run for a page of Dagster, with a link where MLflow has pages."""
    page = run_page(deployment.tracking_uri(), run)
    return {"run": run.run_id, **({"run in MLflow": dg.MetadataValue.url(page)} if page else {})}
