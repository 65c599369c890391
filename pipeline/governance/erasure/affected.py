"""Which datasets, iterations, checkpoints and model versions were made from a user's rows: by the dataset's rows or,
once these expired, by the iteration's labels. A dataset whose labels are gone, too, counts as affected."""

import json
from collections.abc import Collection, Mapping

import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.locations import Document
from pipeline.core.storage import Store
from pipeline.governance.erasure.records import Affected, Person
from pipeline.registry import versions
from pipeline.rewards.reward_model.records import RewardModelReport
from pipeline.rollout.record import ModelVersion
from pipeline.traces.lake import Lake, LakeConfig
from pipeline.traces.lake.files import count_rows
from pipeline.traces.records import Window
from pipeline.traces.retention import windows
from pipeline.traces.scope import where
from pipeline.training.checkpoints.checkpointer import published
from pipeline.training.result import TrainingResult


def find(store: Store, lake: Lake, config: LakeConfig, person: Person, registry_uri: str) -> Affected:
    """Everything affected, as the store, the lake and MLflow have it now."""
    all_iterations = iterations(store)
    touched = _readable(store, lake, config, person)
    for digest in {each.dataset.digest for each in all_iterations} - touched.keys():
        touched[digest] = _remembered(store, digest, all_iterations, person)
    seen = {digest for digest, holds in touched.items() if holds}
    ours = [each for each in all_iterations if each.dataset.digest in seen]
    results = {each.id: store.read(each.path(layout.RESULT), TrainingResult) for each in all_iterations}
    trained = {id: result for id, result in results.items() if result is not None}
    reports = {each.id: store.read(each.path(layout.REWARD_MODEL), RewardModelReport) for each in ours}
    scorers = {id: report.model.digest for id, report in reports.items() if report and report.model}
    models = {trained[each.id].checkpoint.model.digest for each in ours if each.id in trained}
    heirs = _heirs(all_iterations, trained, models, {each.id for each in ours})
    named = _versions(store, [*ours, *heirs], registry_uri)
    checkpoints = [c for each in ours for c in _checkpoints(store, each, trained.get(each.id))]
    digests = {d for each in ours if each.id in trained for d in _digests(trained[each.id])}
    return Affected(
        datasets=tuple(sorted(seen)),
        iterations=tuple(sorted(each.id for each in ours)),
        checkpoints=tuple(sorted([*checkpoints, *(f"{id}/reward model {digest}" for id, digest in scorers.items())])),
        versions=tuple(sorted({name for each in ours for name in named[each.id]})),
        digests=tuple(sorted({*digests, *scorers.values()})),
        inherited=tuple(sorted({n for each in heirs for n in named[each.id] or [f"iteration {each.id}"]})),
    )


def iterations(store: Store) -> list[Iteration]:
    """Every iteration of the store, by id. Raises ValueError when one cannot be read."""
    all_iterations: list[Iteration] = []
    for path in sorted(store.path(layout.ITERATIONS).glob(f"*/{layout.GOVERNED}")):
        try:
            named = json.loads(path.read_bytes())["iteration"]
            all_iterations.append(Iteration.model_validate(named, context=Document(path)))
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path} does not name its iteration ({error}). Restore it, and run again.") from error
    return all_iterations


def _readable(store: Store, lake: Lake, config: LakeConfig, person: Person) -> dict[str, bool]:
    """Of each dataset whose snapshot is there, whether it holds the person. A file is read once for each scope."""
    holds: dict[str, bool] = {}
    alike: dict[str, list[Window]] = {}
    for window in windows(store):
        if lake.has(window.snapshot):
            alike.setdefault(window.scope.model_dump_json(), []).append(window)
    for group in alike.values():
        files = {window.digest: lake.files(window.days, window.snapshot) for window in group}
        rows = where(group[0].scope)
        theirs = person.rows() if rows is None else person.rows() & rows
        holding = count_rows(config, sorted({uri for uris in files.values() for uri in uris}), theirs)
        holds |= {digest: not holding.keys().isdisjoint(uris) for digest, uris in files.items()}
    return holds


def _remembered(store: Store, digest: str, all_iterations: Collection[Iteration], person: Person) -> bool:
    """The same of a dataset that can no longer be read, by the labels of its rows; also True when they are gone."""
    folders = [store.path(layout.iteration(each.id)) for each in all_iterations if each.dataset.digest == digest]
    labelled = [folder for folder in folders if (folder / layout.LABELS).exists()]
    tables = [table for folder in labelled if (table := folder / layout.LABEL_TABLE).exists()]
    if labelled and not tables:
        return True
    wanted = [("user_id", "in", sorted(person.principals))]
    return any(pq.read_table(table, columns=["user_id"], filters=wanted).num_rows for table in tables)


def _digests(result: TrainingResult) -> tuple[str, str]:
    return result.checkpoint.adapter.digest, result.checkpoint.model.digest


def _checkpoints(store: Store, iteration: Iteration, result: TrainingResult | None) -> list[str]:
    training = store.path(iteration.path(layout.TRAINING))
    steps = [folder.name for folder in published(training / "checkpoints")]
    steps += [str(folder.relative_to(training)) for folder in sorted(training.glob("nemo/*/checkpoints/step_*"))]
    final: list[str] = []
    if result is not None:
        adapter, model = _digests(result)
        final = [f"adapter {adapter}", f"model {model}"]
    return [f"{iteration.id}/{name}" for name in [*steps, *final]]


def _heirs(
    all_iterations: Collection[Iteration],
    trained: Mapping[str, TrainingResult],
    models: Collection[str],
    ours: Collection[str],
) -> list[Iteration]:
    """Iterations whose champion, or the champion before it and so on, is one of `models`."""
    heirs: dict[str, Iteration] = {}
    while True:
        bases = {*models, *(trained[id].checkpoint.model.digest for id in heirs if id in trained)}
        new = {i.id: i for i in all_iterations if i.champion.digest in bases and i.id not in ours and i.id not in heirs}
        if not new:
            return list(heirs.values())
        heirs |= new


def _versions(store: Store, wanted: Collection[Iteration], registry_uri: str) -> dict[str, list[str]]:
    """By iteration; also of one whose registration was interrupted, which MLflow alone knows."""
    version_names: dict[str, set[str]] = {each.id: set() for each in wanted}
    for each in wanted:
        version = store.read(each.path(layout.MODEL_VERSION), ModelVersion)
        if version is not None:
            version_names[each.id].add(f"{version.name} version {version.version}")
    for name in {each.model_name for each in wanted}:
        for row in versions.registered(registry_uri, name, list(version_names)):
            version_names[row.iteration].add(f"{row.name} version {row.version}")
    return {id: sorted(names) for id, names in version_names.items()}
