"""The stage: thumbs in, a reward model with its report out, once for each iteration; and scoring by it. Both are in a
process of its own: the caller imports no torch. Too few thumbs are a result with its reason. Killed and run again, a
training ends with the same bits on CPU."""

import json
import os
import shutil
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import Timer

from pipeline.core import layout
from pipeline.core.estimate import share
from pipeline.core.processes import PipedProcess, piped
from pipeline.core.storage import ModelRef, digest_dir, locked, model_ref
from pipeline.recipe.rewards import RewardModelSettings
from pipeline.rewards.records import Finding
from pipeline.rewards.reward_model.measures import auc, objections, twin
from pipeline.rewards.reward_model.records import (
    NEVER_RETRY,
    AnsweredChat,
    ProbeResult,
    RewardModelJob,
    RewardModelOutcome,
    RewardModelReport,
    Thumb,
    TrainingRow,
    UserPart,
    split_by_user,
    thumbs_of,
    too_little,
)
from pipeline.traces.context import IterationContext
from pipeline.traces.erased import shared_lock

MODULE = "pipeline.rewards.reward_model"
NOT_ASKED = "none: the recipe has no rewards.reward_model"
UNUSABLE = {"too_long": "longer than the model reads", "template": "refused by the chat template"}
Trainable = Callable[[], tuple[Sequence[Thumb], Mapping[str, int]]]
"""The rated rows that may be trained on now, and how many others there are, by reason."""
Pairs = dict[str, list[tuple[str, str, str]]]
"""Probe to prompt, answer and twin."""


def train_reward_model(context: IterationContext, trainable: Trainable) -> RewardModelReport:
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
    with locked(store.path(iteration.path(layout.REWARD_MODEL_LOCK))), shared_lock(store):
        return store.once(name, RewardModelReport, lambda: _make(context, settings, trainable))


def _make(context: IterationContext, settings: RewardModelSettings, trainable: Trainable) -> RewardModelReport:
    started, store, iteration = time.monotonic(), context.store, context.iteration
    rated, left_out = trainable()
    thumbs, counts = thumbs_of(rated, left_out)
    parts = split_by_user(thumbs, settings)
    report = RewardModelReport(iteration=iteration.id, counts=counts)
    if lacks := too_little([(thumb.user_id, thumb.up) for thumb in thumbs], parts):
        return report.model_copy(update={"reason": f"not trained: {lacks}"})
    base = iteration.champion if settings.base is None else model_ref(Path(settings.base).absolute())
    pairs = _pairs(thumbs, parts, settings)
    rows = [TrainingRow(each.prompt, each.completion, each.user_id, each.up, parts[each.user_id]) for each in thumbs]
    rows += [TrainingRow(prompt, text) for each in pairs.values() for prompt, *texts in each for text in texts]
    context.log(f"reward model: {len(thumbs):,} thumbs of {len(parts):,} users, trained from {base.digest[:12]}")
    name = iteration.path(layout.REWARD_MODEL_FOLDER)
    shutil.rmtree(store.path(name), ignore_errors=True)  # of an attempt that was killed before its record
    with store.staged(name) as staging:
        job = RewardModelJob(base=base.uri, target=str(staging / "model"), rows=tuple(rows), settings=settings)
        outcome = _train(context, job)
    unusable = {UNUSABLE.get(reason, reason): n for reason, n in sorted(outcome.unusable.items())}
    counts = counts.model_copy(update={"left_out": {**counts.left_out, **unusable}})
    report = report.model_copy(update={"counts": counts})
    if outcome.not_trained:
        return report.model_copy(update={"reason": f"not trained: {outcome.not_trained}"})
    folder = store.path(name, "model")
    model = ModelRef(uri=str(folder), digest=digest_dir(folder))
    figures = {"model": model, "base": base, "seconds": time.monotonic() - started}
    return report.model_copy(update={**figures, **_measured(settings, thumbs, pairs, outcome, report)})


def _pairs(thumbs: Sequence[Thumb], parts: Mapping[str, UserPart], settings: RewardModelSettings) -> Pairs:
    """Of answers that held-out users liked, one a prompt: no model trained on them, and few of them are bad."""
    liked: dict[str, Thumb] = {}
    for thumb in thumbs:
        if thumb.up and parts[thumb.user_id] == "held_out":
            liked.setdefault(thumb.prompt, thumb)
    pairs: Pairs = {}
    for probe in settings.probes:
        twins = ((each, twin(probe, each.prompt, each.completion)) for each in liked.values())
        pairs_of_probe = [(each.prompt, each.completion, other) for each, other in twins if other is not None]
        pairs[probe.name] = pairs_of_probe[: settings.probe_answers]
    return pairs


def _train(context: IterationContext, job: RewardModelJob) -> RewardModelOutcome:
    """In a process of its own, which is killed after `timeout_s` and whenever this one is interrupted."""
    timeout_s, last = job.settings.timeout_s, ""
    with piped("The reward model's training", _command("train")) as child:
        assert child.process.stdout is not None
        deadline = Timer(timeout_s, child.process.kill)
        deadline.start()
        try:
            child.send(f"{job.model_dump_json()}\n")
            for last in child.process.stdout:
                if not last.startswith("{"):
                    context.log(f"reward model: {last.rstrip()}")
            code, tail = child.ended()
        finally:
            deadline.cancel()
    if code == NEVER_RETRY:
        raise ValueError(f"No reward model can be trained from this base: {tail}")
    if code != 0:
        raise RuntimeError(
            f"The reward model's training ended with exit code {code} (-9: killed, perhaps after "
            f"rewards.reward_model.timeout_s, {timeout_s:.0f} s). Run it again. Its last lines:\n{tail}"
        )
    return RewardModelOutcome.model_validate_json(last)


def _command(what: str, *arguments: str) -> list[str]:
    return [sys.executable, "-m", MODULE, what, str(os.getpid()), *arguments]


def _measured(
    settings: RewardModelSettings,
    thumbs: Sequence[Thumb],
    pairs: Pairs,
    outcome: RewardModelOutcome,
    report: RewardModelReport,
) -> dict[str, object]:
    """The report's figures, from the scores of held-out thumbs and of probes."""
    values = {at: value for at, value in outcome.scores.items() if value is not None}
    held_out = [(thumb, values[at]) for at, thumb in enumerate(thumbs) if at in values]
    scores, ups = [value for _, value in held_out], [thumb.up for thumb, _ in held_out]
    area = auc(scores, ups, [thumb.user_id for thumb, _ in held_out])
    probes: list[ProbeResult] = []
    at = len(thumbs)
    for probe in settings.probes:
        places = range(at, at + 2 * len(pairs[probe.name]), 2)
        at = places.stop
        scored = [(values[a], values[a + 1]) for a in places if a in values and a + 1 in values]
        ordered = share(sum(answer > other for answer, other in scored), len(scored))
        passes = ordered.low is not None and ordered.low >= settings.min_probe
        probes.append(ProbeResult(name=probe.name, kind=probe.kind, ordered_right=ordered, passes=passes))
    against = objections(settings, report.counts, area, probes)
    return {
        "auc": area,
        "probes": tuple(probes),
        "admitted": not against,
        "reasons": against,
    }


class RewardScorer:
    """A reward model, opened."""

    def __init__(self, child: PipedProcess) -> None:
        self._child = child

    def score(self, completions: Sequence[AnsweredChat]) -> list[Finding]:
        """For each the probability of a thumb up, in [0, 1]; or none with the reason: too_long (for the model, or its
        `max_tokens`), template (which refuses the messages), not_finite.

        The values do not depend on what is scored beside them, up to 1e-6. Raises RuntimeError when the process ends.
        """
        if not completions:
            return []
        return [Finding(value, reason) for value, reason in json.loads(self._child.ask(json.dumps(completions)))]


@contextmanager
def open_scorer(model: ModelRef) -> Generator[RewardScorer]:
    """The scorer of `RewardModelReport.model`, until the block ends.

    Raises ValueError when the folder is not the one that was trained, to the bit.
    """
    folder = Path(model.uri)
    if not folder.is_dir() or digest_dir(folder) != model.digest:
        raise ValueError(f"{folder} is missing, or changed since the reward model was trained: pt retry reward_model")
    with piped(f"The reward model at {model.uri}", _command("score", model.uri)) as child:
        yield RewardScorer(child)
