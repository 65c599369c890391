"""MLflow's registry: one run an iteration, at most one version a run, aliases and tags by the rollout's record."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pipeline.core.iteration import Iteration
from pipeline.core.mlflow_server import mlflow_answers
from pipeline.core.storage import CheckpointRef, Record, Store
from pipeline.recipe.pinning import leaves
from pipeline.registry import runs
from pipeline.registry.base_findings import last_check
from pipeline.registry.model_artifacts import (
    ADAPTER,
    MLMODEL,
    MODEL,
    base_id,
    model_card,
    stage_adapter,
    stage_model,
)
from pipeline.registry.runs import MlflowAddresses, RunIdentity, allowed, mlflow_client
from pipeline.registry.tracking import has_database
from pipeline.rollout.record import JudgedCandidate, ModelVersion, RolloutState
from pipeline.training.journal import LoggedRow, read_rows

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion as RegisteredVersion


MAX_DESCRIPTION = 5000
"""Characters that every MLflow backend stores."""
NOTE = "mlflow.note.content"
"""MLflow's tag of a run's description."""


class RecordedVersion(Record):
    run: RunIdentity
    version: ModelVersion | None


class ModelRegistration(NamedTuple):
    name: str
    version: int
    iteration: str
    digest: str


@dataclass(frozen=True)
class RunContents:
    """The contents of a run besides the lineage. `metrics` are rows `{"step": int, name: value}`; `plots` PNG files by
    name; `card` the sections of `model_card`; `tables` have `columns` and `data`."""

    params: Mapping[str, Any]
    metrics: Sequence[Mapping[str, float]]
    plots: Mapping[str, bytes]
    card: Mapping[str, str]
    code_version: str
    tags: Mapping[str, str] = field(default_factory=dict[str, str])
    tables: Mapping[str, Mapping[str, Any]] = field(default_factory=dict[str, Mapping[str, Any]])


def record(
    addresses: MlflowAddresses,
    store: Store,
    iteration: Iteration,
    checkpoint: CheckpointRef,
    judged: JudgedCandidate,
    contents: RunContents,
) -> RecordedVersion:
    """Record an iteration as a run, and register its model if the verdict is PASS. Idempotent, also after a crash."""
    with mlflow_answers(addresses.tracking, addresses.versions):
        client = mlflow_client(addresses.tracking, addresses.registry)
        lineage = _lineage(client, store, iteration, checkpoint, judged, contents.code_version)
        text = model_card(iteration.model_name, lineage, contents.card, last_check(store, iteration.champion))
        run = runs.open_run(client, addresses, store, iteration, checkpoint.model.digest)
        runs.log_params(client, run, {key: store.within(value) for key, value in leaves(contents.params)})
        runs.log_points(client, run, _rows(store, run, iteration, contents.metrics))
        runs.log_dataset(client, run, store, iteration)
        tags = {**contents.tags, **lineage, NOTE: _short(text)}
        runs.log_tags(client, run, tags)
        _log_artifacts(client, run, checkpoint, contents, lineage, text)
        passed = judged.verdict == "PASS"
        version = _version(client, addresses, run, iteration, checkpoint, tags) if passed else None
        client.set_terminated(run.info.run_id, "FINISHED")
        return RecordedVersion(run=RunIdentity(run.info.experiment_id, run.info.run_id), version=version)


def project(addresses: MlflowAddresses, state: RolloutState) -> None:
    """Set aliases and tags by the rollout's record. Raises ValueError when a version that needs an alias is gone or has
    no files, after everything else is set."""
    if state.proposal is None:
        return
    with mlflow_answers(addresses.tracking, addresses.versions):
        client, candidate = mlflow_client(addresses.tracking, addresses.registry), state.proposal.version
        name, past = candidate.name, state.past
        aliases = client.get_registered_model(name).aliases
        there = {int(version.version): version for version in _versions(client, name)}
        lost: list[str] = []
        faults: list[str] = []
        challenger = candidate if state.active else None
        for alias, wanted in (("champion", past.champion), ("previous", past.previous), ("challenger", challenger)):
            if wanted is None:
                if alias in aliases:
                    client.delete_registered_model_alias(name, alias)
            elif wanted.version not in there:
                lost.append(f"{alias} {wanted.version}")
            elif str(aliases.get(alias)) != str(wanted.version):
                if fault := version_fault(client, addresses, there[wanted.version]):
                    faults.append(f"{alias} stays as it is. {fault}")
                    continue
                client.set_registered_model_alias(name, alias, str(wanted.version))
        weight, key = state.canary_weight, "traffic_percent"
        tags = {number: {key: "0"} for number, version in there.items() if key in version.tags}
        tags[candidate.version] = {"rollout": str(state.phase), key: str(weight)}
        if past.champion is not None and past.champion.version in there:  # the candidate, once it is promoted
            tags.setdefault(past.champion.version, {})[key] = str(100 - weight)
        for number in past.quarantined.values():
            tags.setdefault(number, {})["quarantined"] = "true"
        for number, wanted_tags in tags.items():
            if number not in there:
                lost.append(f"version {number}")
                continue
            for key, value in wanted_tags.items():
                if there[number].tags.get(key) != value:
                    client.set_model_version_tag(name, str(number), key, value)
    if lost:
        faults.append(f"{name} has lost {', '.join(lost)}. Restore the registry's database from a backup.")
    if faults:
        raise ValueError(" ".join(faults))


def version_fault(client: MlflowClient, addresses: MlflowAddresses, version: RegisteredVersion) -> str:
    """Why a version cannot be loaded now, or after the next `mlflow gc`, with the command that mends it; or ""."""
    name, run_id = f"{version.name} version {version.version}", version.run_id or ""
    files = runs.artifacts_at(str(version.source), addresses).list_artifacts()
    if not any(each.path == MLMODEL for each in files):
        tags = json.dumps({"iteration": version.tags.get("iteration", "")})
        command = f"dagster job launch -j preference_tuning -o model_version --tags '{tags}'"
        return f"{name} has lost its files. Put them there again: {command}"
    with allowed("RESOURCE_DOES_NOT_EXIST"):  # removed for good, and the files were put there again
        if client.get_run(run_id).info.lifecycle_stage == "deleted":
            command = f"{addresses.variable} mlflow runs restore --run-id {run_id}"
            return f"The run of {name} is deleted, and `mlflow gc` removes its files. Restore it: {command}"
    return ""


def registered(registry_uri: str, name: str, iterations: Sequence[str]) -> list[ModelRegistration]:
    """The versions of `name` from these iterations, in order."""
    if not has_database(registry_uri):
        return []
    with mlflow_answers(registry_uri):
        model_versions = _versions(mlflow_client(registry_uri), name)
    ours = [v for v in model_versions if v.tags.get("iteration") in iterations]
    return [ModelRegistration(name, int(v.version), v.tags["iteration"], v.tags.get("digest", "")) for v in ours]


def tag_blocked(registry_uri: str, registrations: Sequence[ModelRegistration], proof: str, reason: str) -> None:
    """Tag each version as blocked from promotion, with the reason."""
    if not registrations:
        return
    with mlflow_answers(registry_uri):
        client = mlflow_client(registry_uri)
        for each in registrations:
            client.set_model_version_tag(each.name, str(each.version), "blocked", f"erasure {proof}")
            client.set_model_version_tag(each.name, str(each.version), "blocked_reason", reason)


def drop_weights(addresses: MlflowAddresses, iteration: Iteration) -> bool:
    """Delete an iteration's weights in MLflow, which keeps runs and versions; False where a version has an alias."""
    with mlflow_answers(addresses.tracking, addresses.versions):
        client, name = mlflow_client(addresses.tracking, addresses.registry), iteration.model_name
        ours = [each for each in _versions(client, name) if each.tags.get("iteration") == iteration.id]
        if any(client.get_model_version(name, each.version).aliases for each in ours):
            return False
        for each in ours:
            client.set_model_version_tag(name, each.version, "weights", "deleted by retention")
        if experiment := runs.experiment_of(client, addresses, name):
            for run in client.search_runs([experiment], f"tags.iteration = '{iteration.id}'"):
                for folder in (MODEL, ADAPTER):
                    runs.artifacts_at(str(run.info.artifact_uri), addresses).delete_artifacts(folder)
    return True


def _rows(store: Store, run: Run, iteration: Iteration, rows: Sequence[Mapping[str, float]]) -> Iterator[LoggedRow]:
    """The metrics that the training logged, at their times; those of its result alone get the time of the last step, so
    that a repeated point is the same."""
    logged = {row.step: row for row in read_rows(runs.metrics_file(store, iteration))[0]}
    yield from logged.values()
    last = max(logged.values(), key=lambda row: row.step, default=LoggedRow(run.info.start_time / 1000, 0, {}))
    for row in rows:
        at, step, measured = logged.get(int(row["step"]), last._replace(step=int(row["step"]), metrics={}))
        rest = {name: float(value) for name, value in row.items() if name != "step" and name not in measured}
        yield LoggedRow(at, step, rest)


def _log_artifacts(
    client: MlflowClient,
    run: Run,
    checkpoint: CheckpointRef,
    contents: RunContents,
    lineage: Mapping[str, str],
    card: str,
) -> None:
    """Plots, tables, the card and the adapter; a tag of the run names the tables that MLflow shows."""
    with tempfile.TemporaryDirectory(prefix="artifacts-") as staged:
        folder = Path(staged)
        (folder / "plots").mkdir()
        for name, png in contents.plots.items():
            (folder / "plots" / f"{name}.png").write_bytes(png)
        for name, table in contents.tables.items():
            (folder / f"{name}.json").write_text(json.dumps(table), encoding="utf-8")
        (folder / "model_card.md").write_text(card, encoding="utf-8")
        stage_adapter(checkpoint, lineage["base"], lineage["champion.digest"], folder / ADAPTER)
        client.log_artifacts(run.info.run_id, staged)
    if contents.tables:
        shown = [{"path": f"{name}.json", "type": "table"} for name in contents.tables]
        runs.log_tags(client, run, {"mlflow.loggedArtifacts": json.dumps(shown)})


def _version(
    client: MlflowClient,
    addresses: MlflowAddresses,
    run: Run,
    iteration: Iteration,
    checkpoint: CheckpointRef,
    about: Mapping[str, str],
) -> ModelVersion:
    """The iteration's version of the model. Its files are uploaded before it is made, and again, to the same place,
    where they are gone."""
    name, tags = iteration.model_name, {"digest": checkpoint.model.digest, "iteration": iteration.id}
    with allowed("RESOURCE_ALREADY_EXISTS"):
        client.create_registered_model(name, description="@champion serves, @challenger is rolled out.")

    def ours() -> list[RegisteredVersion]:
        return [version for version in _versions(client, name) if tags.items() <= version.tags.items()]

    there = ours()
    source = str(there[0].source if there else f"{run.info.artifact_uri}/{MODEL}")
    if not there or version_fault(client, addresses, there[0]):
        with tempfile.TemporaryDirectory(prefix="model-") as folder:
            files, place = Path(folder, MODEL), runs.artifacts_at(source, addresses)
            metadata = {"name": name, "iteration": iteration.id, "base": about["base"]}
            stage_model(checkpoint, run.info.run_id, metadata, files)
            last = (files / MLMODEL).rename(Path(folder, MLMODEL))
            place.log_artifacts(str(files))
            place.log_artifact(str(last))
        for version in there:  # its own run may be removed
            client.set_model_version_tag(name, version.version, "run", run.info.run_id)
    if not there:
        client.create_model_version(
            name,
            source=source,
            run_id=run.info.run_id,
            tags={**tags, **{key: about[key] for key in ("verdict", "bundle", "base")}},
            description=about[NOTE],
        )
    version, *others = ours()
    for other in others:
        client.delete_model_version(name, other.version)
    return ModelVersion(
        name=name,
        version=int(version.version),
        run_id=version.run_id or run.info.run_id,
        model=checkpoint.model,
        adapter=checkpoint.adapter,
        iteration=iteration.id,
    )


def _versions(client: MlflowClient, name: str) -> list[RegisteredVersion]:
    return sorted(client.search_model_versions(f"name='{name}'"), key=lambda version: int(version.version))


def _lineage(
    client: MlflowClient,
    store: Store,
    iteration: Iteration,
    checkpoint: CheckpointRef,
    judged: JudgedCandidate,
    code_version: str,
) -> dict[str, str]:
    """`base`: the champion's registry URI, else its name."""
    champion, name = iteration.champion, iteration.model_name
    registered_base = next((v for v in _versions(client, name) if v.tags.get("digest") == champion.digest), None)
    return {
        "iteration": iteration.id,
        "dataset.uri": store.within(iteration.dataset.uri),
        "dataset.snapshot": iteration.dataset.snapshot,
        "dataset.digest": iteration.dataset.digest,
        "base": f"models:/{name}/{registered_base.version}" if registered_base else base_id(champion.uri),
        "champion.digest": champion.digest,
        "model.digest": checkpoint.model.digest,
        "adapter.digest": checkpoint.adapter.digest,
        "recipe.digest": iteration.recipe_digest,
        "code.version": code_version,
        "verdict": judged.verdict,
        "bundle": judged.bundle_digest,
    }


def _short(text: str) -> str:
    return text if len(text) <= MAX_DESCRIPTION else text[: MAX_DESCRIPTION - 1] + "…"
