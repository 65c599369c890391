"""MLflow: what an iteration was made from and measured, its registered version, and the aliases people look for.

Owns one run per iteration and at most one version per run, however often it is retried. Refuses to be the truth about
who is champion: that is the rollout's record, and `project` makes aliases and tags follow it.

The model card: one markdown page that says what a version is, what it was made from and how far to trust it.

Owns the sections that every card has. Refuses to write them: who knows the facts does.
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline import layout
from pipeline.iteration import Iteration
from pipeline.pinning import leaves
from pipeline.rollout.record import JudgedCandidate, ModelVersion, RolloutState
from pipeline.storage import CheckpointRef, Record, Store

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run


ADAPTER = "adapter"
MAX_DESCRIPTION = 5000
"""Characters that every MLflow backend stores."""
ALIASES = ("champion", "challenger", "previous")
"""The aliases that follow the rollout; any other alias is left alone."""


class RecordedVersion(Record):
    """The iteration's run, and its version when the verdict was PASS."""

    run_id: str
    version: ModelVersion | None


class ModelRegistration(NamedTuple):
    """A version as MLflow has it: `digest` is its model's."""

    name: str
    version: int
    iteration: str
    digest: str


@dataclass(frozen=True)
class RunContents:
    """What goes on record beside the lineage. `params` may nest; `metrics` are rows `{"step": int, name: value}`;
    `plots` are PNG files by name; `card` holds the sections of `SECTIONS` in Markdown."""

    params: Mapping[str, Any]
    metrics: Sequence[Mapping[str, float]]
    plots: Mapping[str, bytes]
    card: Mapping[str, str]
    code_version: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])


def record(
    tracking_uri: str,
    store: Store,
    iteration: Iteration,
    checkpoint: CheckpointRef,
    judged: JudgedCandidate,
    contents: RunContents,
) -> RecordedVersion:
    """Record an iteration in experiment `iteration.model_name`; register its adapter if the verdict is PASS.

    Calling it again, also after a crash halfway, adds nothing twice.
    """
    lineage = _lineage(store, iteration, checkpoint, judged, contents.code_version)
    text = model_card(iteration.model_name, lineage, contents.card)
    client = _client(tracking_uri)
    # A tracking server knows where its artifacts go; a database does not.
    remote = tracking_uri.startswith("http")
    run = _run(client, None if remote else store.path(layout.MLFLOW, iteration.model_name), iteration)
    run_id = run.info.run_id
    _log_params(client, run, {key: store.within(value) for key, value in leaves(contents.params)})
    _log_metrics(client, run, contents.metrics)
    for key, value in {**contents.tags, **lineage}.items():
        client.set_tag(run_id, key, value)
    with tempfile.TemporaryDirectory(prefix="plots-") as folder:
        for name, png in contents.plots.items():
            Path(folder, f"{name}.png").write_bytes(png)
        client.log_artifacts(run_id, folder, "plots")
    client.log_artifacts(run_id, checkpoint.adapter.uri, ADAPTER)
    client.log_text(run_id, text, "model_card.md")
    version = _version(client, run, iteration, checkpoint, lineage, text) if judged.verdict == "PASS" else None
    client.set_terminated(run_id, "FINISHED")
    return RecordedVersion(run_id=run_id, version=version)


def project(tracking_uri: str, state: RolloutState) -> None:
    """Make aliases and tags agree with the rollout's record, whatever anybody did to them.

    Raises ValueError when a version that should carry an alias is gone, after everything else is in place.
    """
    if state.proposal is None:
        return
    client, candidate = _client(tracking_uri), state.proposal.version
    wanted = {"champion": state.champion, "previous": state.previous, "challenger": candidate if state.active else None}
    current_aliases = client.get_registered_model(candidate.name).aliases
    numbers = {int(version.version) for version in client.search_model_versions(f"name='{candidate.name}'")}
    lost: list[str] = []
    for alias in ALIASES:
        version = wanted[alias]
        if version is None and alias in current_aliases:
            client.delete_registered_model_alias(candidate.name, alias)
        elif version is not None and version.version not in numbers:
            lost.append(f"{alias} {version.version}")
        elif version is not None and str(current_aliases.get(alias)) != str(version.version):
            client.set_registered_model_alias(candidate.name, alias, str(version.version))
    tags = {candidate.version: {"rollout": str(state.phase), "canary_weight": str(state.canary_weight)}}
    for number in state.quarantined.values():
        tags.setdefault(number, {})["quarantined"] = "true"
    for number, wanted_tags in tags.items():
        if number not in numbers:
            lost.append(f"version {number}")
            continue
        held = client.get_model_version(candidate.name, str(number)).tags
        for key, value in wanted_tags.items():
            if held.get(key) != value:
                client.set_model_version_tag(candidate.name, str(number), key, value)
    if lost:
        raise ValueError(f"{candidate.name} has lost {', '.join(lost)}. Restore the registry's database from a backup.")


def log_plot(tracking_uri: str, run_id: str, name: str, png: bytes) -> None:
    """Show a plot on the run of a version, in place of the one of that name before."""
    with tempfile.TemporaryDirectory(prefix="plots-") as folder:
        file = Path(folder, f"{name}.png")
        file.write_bytes(png)
        _client(tracking_uri).log_artifact(run_id, str(file), "plots")


def registered(tracking_uri: str, name: str, iterations: Sequence[str]) -> list[ModelRegistration]:
    """The versions of `name` that came out of these iterations, in order."""
    model_versions = _client(tracking_uri).search_model_versions(f"name='{name}'")
    ours = [v for v in model_versions if v.tags.get("iteration") in iterations]
    rows = [ModelRegistration(name, int(v.version), v.tags["iteration"], v.tags.get("digest", "")) for v in ours]
    return sorted(rows, key=lambda row: row.version)


def blocked_tags(tracking_uri: str, name: str) -> dict[int, str]:
    """Of each version of `name` by number: which erasure it says that it is blocked by; "" for none."""
    model_versions = _client(tracking_uri).search_model_versions(f"name='{name}'")
    return {int(version.version): version.tags.get("blocked", "") for version in model_versions}


def tag_blocked(tracking_uri: str, registrations: Sequence[ModelRegistration], proof: str, reason: str) -> None:
    """Show on each version that it may not be promoted, and why."""
    client = _client(tracking_uri)
    for each in registrations:
        client.set_model_version_tag(each.name, str(each.version), "blocked", f"erasure {proof}")
        client.set_model_version_tag(each.name, str(each.version), "blocked_reason", reason)


def _client(tracking_uri: str) -> MlflowClient:
    """A quiet client: MLflow otherwise reports home, draws progress bars and narrates its migrations."""
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    from mlflow import MlflowClient

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)
    return MlflowClient(tracking_uri=tracking_uri, registry_uri=tracking_uri)


def _run(client: MlflowClient, artifacts: Path | None, iteration: Iteration) -> Run:
    name = iteration.model_name
    experiment = client.get_experiment_by_name(name)
    if experiment is None:
        location = None
        if artifacts is not None:
            artifacts.mkdir(parents=True, exist_ok=True)
            location = artifacts.as_uri()
        identity = client.create_experiment(name, artifact_location=location)
    else:
        identity = experiment.experiment_id
    runs = client.search_runs([identity], f"tags.iteration = '{iteration.id}'", order_by=["attribute.start_time"])
    if runs:
        return runs[0]
    return client.create_run(identity, tags={"iteration": iteration.id}, run_name=f"{iteration.number}-{iteration.id}")


def _log_params(client: MlflowClient, run: Run, params: Mapping[str, Any]) -> None:
    """Parameters never change once logged, so only those that are not there yet."""
    from mlflow.entities import Param

    new = [Param(key, str(value)) for key, value in params.items() if key not in run.data.params]
    for first in range(0, len(new), 100):
        client.log_batch(run.info.run_id, params=new[first : first + 100])


def _log_metrics(client: MlflowClient, run: Run, rows: Sequence[Mapping[str, float]]) -> None:
    """The timestamp is the run's start: the same row logged again is then the same point, and is kept once."""
    from mlflow.entities import Metric

    points = [
        Metric(name, float(value), run.info.start_time, int(row["step"]))
        for row in rows
        for name, value in row.items()
        if name != "step"
    ]
    for first in range(0, len(points), 1000):
        client.log_batch(run.info.run_id, metrics=points[first : first + 1000])


def _version(
    client: MlflowClient,
    run: Run,
    iteration: Iteration,
    checkpoint: CheckpointRef,
    lineage: Mapping[str, str],
    text: str,
) -> ModelVersion:
    from mlflow.exceptions import MlflowException

    name, tags = iteration.model_name, {"digest": checkpoint.model.digest, "iteration": iteration.id}
    try:
        client.create_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    model_versions = [v for v in client.search_model_versions(f"name='{name}'") if tags.items() <= v.tags.items()]
    version = min(model_versions, key=lambda v: int(v.version), default=None) or client.create_model_version(
        name,
        source=f"{run.info.artifact_uri}/{ADAPTER}",
        run_id=run.info.run_id,
        tags={**tags, "verdict": lineage["verdict"], "bundle": lineage["bundle"]},
        description=text if len(text) <= MAX_DESCRIPTION else text[: MAX_DESCRIPTION - 1] + "…",
    )
    return ModelVersion(
        name=name,
        version=int(version.version),
        run_id=run.info.run_id,
        model=checkpoint.model,
        adapter=checkpoint.adapter,
        iteration=iteration.id,
    )


def _lineage(
    store: Store, iteration: Iteration, checkpoint: CheckpointRef, judged: JudgedCandidate, code_version: str
) -> dict[str, str]:
    return {
        "iteration": iteration.id,
        "dataset.uri": store.within(iteration.dataset.uri),
        "dataset.snapshot": iteration.dataset.snapshot,
        "dataset.digest": iteration.dataset.digest,
        "champion.digest": iteration.champion.digest,
        "model.digest": checkpoint.model.digest,
        "adapter.digest": checkpoint.adapter.digest,
        "recipe.digest": iteration.recipe_digest,
        "code.version": code_version,
        "verdict": judged.verdict,
        "bundle": judged.bundle_digest,
    }


SECTIONS = ("Data", "Evaluation", "Intended use", "Limits")


def model_card(name: str, lineage: Mapping[str, str], sections: Mapping[str, str]) -> str:
    """The card in markdown: the given sections in the order of `SECTIONS`, then the lineage.

    Raises ValueError when a section is missing, empty or unknown.
    """
    if set(sections) != set(SECTIONS) or not all(text.strip() for text in sections.values()):
        filled = sorted(title for title, text in sections.items() if text.strip())
        raise ValueError(f"The card of {name} has {filled}. Write each of {list(SECTIONS)}, and nothing else.")
    body = [part for title in SECTIONS for part in (f"## {title}", sections[title].strip())]
    rows = [f"| {key} | `{value}` |" for key, value in lineage.items() if value]
    table = "\n".join(["| what | value |", "| --- | --- |", *rows])
    return "\n\n".join([f"# {name}", *body, "## Lineage", table]) + "\n"
