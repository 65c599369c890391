"""The stage: thumbs in, a reward model with its report out, once for each iteration. Too few thumbs are a result with
its reason. Killed and run again, it ends with the same bits on CPU."""

import hashlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import Timer
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.core import layout
from pipeline.core.estimate import share
from pipeline.core.processes import piped
from pipeline.core.storage import DatasetRef, ModelRef, digest_dir, model_ref
from pipeline.recipe.rewards import RewardModelSettings
from pipeline.rewards.reward_model.measures import auc, calibration, objections, ordered_within
from pipeline.rewards.reward_model.probes import twin
from pipeline.rewards.reward_model.records import (
    JOB_FILE,
    MODEL_FOLDER,
    NEVER_RETRY,
    PROBE,
    RESULT_FILE,
    ROWS,
    ROWS_FILE,
    ProbeResult,
    RewardModelJob,
    RewardModelOutcome,
    RewardModelReport,
    UserPart,
)
from pipeline.rewards.reward_model.scorer import MODULE
from pipeline.rewards.reward_model.thumbs import Thumb, digest_of, split_by_user, thumbs_of, too_little
from pipeline.traces.context import IterationContext
from pipeline.traces.erased import bind, shared_lock, user_hash

NOT_ASKED = "none: the recipe has no rewards.reward_model"
UNUSABLE = {"too_long": "longer than the model reads", "template": "refused by the chat template"}
Trainable = Callable[[], tuple[Sequence[Thumb], Mapping[str, int]]]
"""The rated rows that may be trained on now, and how many others there are, by reason."""


class TrainingSet(NamedTuple):
    """The rows of a training, thumbs first, and which rows are the two sides of a probe's pairs."""

    thumbs: Sequence[Thumb]
    parts: Mapping[str, UserPart]
    pairs: Mapping[str, Sequence[tuple[str, str, str]]]
    """Probe to prompt, answer and twin."""

    def table(self) -> pa.Table:
        """With the columns of ROWS."""
        rows: list[tuple[Any, ...]] = [
            (each.user_id, each.prompt, each.completion, each.up, self.parts[each.user_id]) for each in self.thumbs
        ]
        for prompt, *texts in (pair for pairs in self.pairs.values() for pair in pairs):
            rows += [(None, prompt, text, None, PROBE) for text in texts]
        return pa.Table.from_pylist([dict(zip(ROWS.names, row, strict=True)) for row in rows], ROWS)


def train_reward_model(context: IterationContext, labels: DatasetRef, trainable: Trainable) -> RewardModelReport:
    """Train and publish the iteration's reward model once, or the reason why there is none.

    `trainable` is called inside the lock that keeps users from being forgotten meanwhile, and not at all where the
    recipe asks for no reward model. Raises ValueError for a base model that none can be trained from, RuntimeError when
    the process ends otherwise: run it again.
    """
    store, iteration, settings = context.store, context.iteration, context.recipe.rewards.reward_model
    name = iteration.path(layout.REWARD_MODEL)
    if settings is None:
        absent = RewardModelReport(iteration=iteration.id, reason=NOT_ASKED)
        return store.once(name, RewardModelReport, lambda: absent)
    with store.alone(iteration.path(layout.REWARD_MODEL_LOCK)), shared_lock(store):
        return store.once(name, RewardModelReport, lambda: _make(context, settings, labels, trainable))


def _make(
    context: IterationContext, settings: RewardModelSettings, labels: DatasetRef, trainable: Trainable
) -> RewardModelReport:
    started, store, iteration = time.monotonic(), context.store, context.iteration
    rated, left_out = trainable()
    thumbs, counts = thumbs_of(rated, settings, left_out)
    parts = split_by_user(thumbs, settings)
    report = RewardModelReport(iteration=iteration.id, counts=counts, labels_digest=labels.digest)
    if lacks := too_little([(thumb.user_id, thumb.up) for thumb in thumbs], parts):
        return report.model_copy(update={"reason": f"not trained: {lacks}"})
    base = iteration.champion if settings.base is None else model_ref(Path(settings.base).absolute())
    training_set = TrainingSet(thumbs, parts, _pairs(thumbs, parts, settings))
    folder, scratch = (store.path(iteration.path(n)) for n in (layout.REWARD_MODEL_FOLDER, layout.REWARD_MODEL_ROWS))
    for path in (folder, scratch):  # of an attempt that was killed
        shutil.rmtree(path, ignore_errors=True)
    scratch.mkdir(parents=True)
    try:
        outcome = _train(context, settings, base, training_set, scratch)
        unusable = {UNUSABLE.get(reason, reason): n for reason, n in sorted(outcome.unusable.items())}
        counts = counts.model_copy(update={"left_out": {**counts.left_out, **unusable}})
        report = report.model_copy(update={"counts": counts})
        if outcome.not_trained:
            return report.model_copy(update={"reason": f"not trained: {outcome.not_trained}"})
        with store.staged(iteration.path(layout.REWARD_MODEL_FOLDER)) as staging:
            (scratch / MODEL_FOLDER).rename(staging / MODEL_FOLDER)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    key, trained = bind(store), {thumb.user_id for thumb in thumbs if parts[thumb.user_id] == "train"}
    marks = "\n".join(sorted(key.mark(user_hash(user)) for user in trained))
    figures = {
        "model": ModelRef(uri=str(folder / MODEL_FOLDER), digest=digest_dir(folder / MODEL_FOLDER)),
        "base": base,
        "rows_digest": digest_of(thumbs),
        "users_hash": hashlib.sha256(marks.encode()).hexdigest(),
        "seconds": time.monotonic() - started,
    }
    return report.model_copy(update={**figures, **_measured(settings, training_set, outcome, report)})


def _pairs(
    thumbs: Sequence[Thumb], parts: Mapping[str, UserPart], settings: RewardModelSettings
) -> dict[str, list[tuple[str, str, str]]]:
    """Of answers that held-out users liked, one a prompt: nobody trained on them, and few of them are bad."""
    liked: dict[str, Thumb] = {}
    for thumb in thumbs:
        if thumb.up and parts[thumb.user_id] == "held_out":
            liked.setdefault(thumb.prompt, thumb)
    pairs: dict[str, list[tuple[str, str, str]]] = {}
    for probe in settings.probes:
        twins = ((each, twin(probe, each.prompt, each.completion)) for each in liked.values())
        pairs_of_probe = [(each.prompt, each.completion, other) for each, other in twins if other is not None]
        pairs[probe.name] = pairs_of_probe[: settings.probe_answers]
    return pairs


def _train(
    context: IterationContext, settings: RewardModelSettings, base: ModelRef, training_set: TrainingSet, folder: Path
) -> RewardModelOutcome:
    """In a process of its own, which is killed after `timeout_s` and whenever this one is interrupted."""
    rows, path, target = (str(folder / name) for name in (ROWS_FILE, JOB_FILE, MODEL_FOLDER))
    pq.write_table(training_set.table(), rows)
    job = RewardModelJob(base=base.uri, rows=rows, target=target, settings=settings)
    Path(path).write_text(job.model_dump_json())
    context.log(
        f"reward model: {len(training_set.thumbs):,} thumbs of {len(training_set.parts):,} users, "
        f"trained from {base.digest[:12]}"
    )
    with piped([sys.executable, "-m", MODULE, "train", path, str(os.getpid())]) as child:
        deadline = Timer(settings.timeout_s, child.process.kill)
        deadline.start()
        try:
            for line in child.process.stdout or ():
                context.log(f"reward model: {line.rstrip()}")
            code, tail = child.ended()
        finally:
            deadline.cancel()
    if code == NEVER_RETRY:
        raise ValueError(f"No reward model can be trained from this base: {tail}")
    if code != 0:
        raise RuntimeError(
            f"The reward model's training ended with exit code {code} (-9: killed, perhaps after "
            f"rewards.reward_model.timeout_s, {settings.timeout_s:.0f} s). Run it again. Its last lines:\n{tail}"
        )
    return RewardModelOutcome.model_validate_json((folder / RESULT_FILE).read_bytes())


def _measured(
    settings: RewardModelSettings, training_set: TrainingSet, outcome: RewardModelOutcome, report: RewardModelReport
) -> dict[str, object]:
    """The report's figures, from the scores of held-out thumbs and of probes."""
    values = {at: value for at, value in outcome.scores.items() if value is not None}
    held_out = [(thumb, values[at]) for at, thumb in enumerate(training_set.thumbs) if at in values]
    scores, ups = [value for _, value in held_out], [thumb.up for thumb, _ in held_out]
    area = auc(scores, ups, [thumb.user_id for thumb, _ in held_out], settings.seed)
    error, bins = calibration(scores, ups)
    probes: list[ProbeResult] = []
    at = len(training_set.thumbs)
    for probe in settings.probes:
        places = range(at, at + 2 * len(training_set.pairs[probe.name]), 2)
        at = places.stop
        scored = [(values[a], values[a + 1]) for a in places if a in values and a + 1 in values]
        ordered = share(sum(answer > other for answer, other in scored), len(scored))
        passes = ordered.low is not None and ordered.low >= settings.min_probe
        probes.append(ProbeResult(name=probe.name, kind=probe.kind, ordered_right=ordered, passes=passes))
    against = objections(settings, report.counts, area, probes)
    return {
        "split": outcome.split,
        "auc": area,
        "within": ordered_within([thumb.prompt for thumb, _ in held_out], scores, ups, settings.seed),
        "calibration_error": error,
        "calibration": bins,
        "probes": tuple(probes),
        "epoch": outcome.epoch,
        "validation_losses": outcome.validation_losses,
        "admitted": not against,
        "reasons": against,
    }
