"""The user's own reward function, called in processes that can be killed: a value in [0, 1], or none with the reason. A
hang, an exception or a value that is none is data of that completion; one that can't be called stops the stage."""

import functools
import json
import math
import numbers
import reprlib
import traceback
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.recipe.custom import CustomReward, check_call, load_code, located
from pipeline.recipe.rewards import Rewards
from pipeline.rewards.composite import Profile, weights_of
from pipeline.rewards.findings import key_of
from pipeline.rewards.records import Finding
from pipeline.rewards.verifiers.code import printable
from pipeline.rewards.verifiers.pool import START_S, Pool, Work, WorkerFailure

TIMEOUT, DIED, RAISED = "custom_timeout", "custom_died", "custom_raised"
INVALID, ABSTAINED = "custom_invalid", "custom_abstained"
ARGUMENTS = ("prompt", "completion", "reference", "metadata")
AGAIN = (TIMEOUT, DIED)
"""Reasons that another attempt may do better at; the function's word on the same input is not asked for twice."""
ROUNDING = 1e-9
"""By which a sum of weights may pass 0 or 1."""

Function = tuple[str, str, str]
"""What a worker needs to load the function: its code, the digest, and JSON of its keyword arguments."""


class CustomTask(NamedTuple):
    """One completion as the function sees it. `prompt` (chat messages) and `metadata` are JSON."""

    prompt: str
    completion: str
    reference: str | None
    metadata: str = "{}"


class CustomScore(NamedTuple):
    """What the function made of one completion. `detail`: the exception's last line, or the value that is none."""

    finding: Finding
    detail: str = ""


class CustomScorer:
    """The function with workers that stay up between calls; close it when done.

    Raises ValueError when the function is not there or not the one that the recipe was read with.
    """

    def __init__(self, custom: CustomReward) -> None:
        there, self._timeout_s = located(custom, Path(), "rewards.custom"), custom.timeout_s
        function = (there.code, there.digest or "", json.dumps(there.options, sort_keys=True))
        work = Work(
            functools.partial(_in_worker, function),
            functools.partial(_check, function),
            of_others=True,
            memory_field="rewards.custom.memory_mb",
        )
        self._pool: Pool[CustomTask | None, CustomScore] = Pool(work, custom.workers, custom.memory_mb)

    def start(self) -> None:
        """Import the function once. Raises ValueError when it can't be imported, or not be called."""
        self._pool.run([None], [START_S])

    def __call__(
        self, tasks: Sequence[CustomTask], done: Callable[[CustomTask, CustomScore], None] = lambda task, score: None
    ) -> list[CustomScore]:
        """The scores in the order of the tasks; equal tasks are scored once. Raises ValueError as `start`.

        `done` gets each task that was scored as soon as its score is there.
        """
        todo = list(dict.fromkeys(tasks))
        results = self._pool.run(
            todo, [self._timeout_s] * len(todo), lambda number, result: done(todo[number], _score(result))
        )
        scores = dict(zip(todo, map(_score, results), strict=True))
        return [scores[task] for task in tasks]

    def close(self) -> None:
        self._pool.close()


def check_function(settings: Rewards) -> None:
    """Import the function that the recipe names, if any, in a process of its own. Raises ValueError as `start`."""
    if settings.custom is not None:
        with closing(CustomScorer(settings.custom)) as scorer:
            scorer.start()


def wants_custom(profile: Profile, settings: Rewards) -> bool:
    return settings.custom is not None and weights_of(profile, settings).custom > 0


def custom_scorer(profile: Profile, settings: Rewards) -> CustomScorer | None:
    """The scorer of such completions, None where the function has no say. Raises ValueError as CustomScorer."""
    return CustomScorer(settings.custom) if settings.custom and wants_custom(profile, settings) else None


def custom_id(settings: Rewards) -> str:
    """Digest of the function and its options, '' without one: a changed function is another."""
    return "" if settings.custom is None else settings.custom.identity


def custom_key(id: str, trace_id: str, observation_id: str, task: CustomTask) -> str:
    """Key of the function's finding on a logged completion: of all that it is given, and of what it is."""
    given = "" if task.reference is None else f"={task.reference}"
    return key_of("custom", id, trace_id, observation_id, task.prompt, task.completion, given, task.metadata)


def _score(result: CustomScore | WorkerFailure) -> CustomScore:
    if isinstance(result, WorkerFailure):
        return CustomScore(Finding(None, TIMEOUT if result is WorkerFailure.timeout else DIED))
    return result


def _in_worker(function: Function, task: CustomTask | None) -> CustomScore:
    if task is None:
        return CustomScore(Finding(None))
    try:
        prompt, metadata = json.loads(task.prompt), json.loads(task.metadata)
        return _read(_load(function)(prompt, task.completion, task.reference, metadata))
    except MemoryError:
        raise  # the worker may be damaged: the pool replaces it
    except BaseException as error:  # the boundary to code of others, which may also try to end the process
        return CustomScore(Finding(None, RAISED), printable(traceback.format_exception_only(error)[-1]))


def _read(value: Any) -> CustomScore:
    """What a return value is worth: numbers of [0, 1] and None alone are answers."""
    if value is None:
        return CustomScore(Finding(None, ABSTAINED))
    if isinstance(value, numbers.Real):
        number = float(value)
        if math.isfinite(number) and -ROUNDING <= number <= 1 + ROUNDING:
            return CustomScore(Finding(min(1.0, max(0.0, number))))
    return CustomScore(Finding(None, INVALID), printable(f"{type(value).__name__}: {reprlib.repr(value)}"))


@functools.cache
def _load(function: Function) -> Callable[..., Any]:
    """The function with its options, imported once a worker."""
    code, digest, options = function
    return functools.partial(load_code(code, digest), **json.loads(options))


def _check(function: Function) -> None:
    """Import the function, and see that it can be called. Raises ValueError when a person has to mend it."""
    code, digest, options = function
    try:
        loaded = load_code(code, digest)
    except MemoryError as error:
        raise ValueError("rewards.custom: its imports need more memory. Raise rewards.custom.memory_mb.") from error
    check_call(f"rewards.custom.code: {code}", loaded, ARGUMENTS, json.loads(options))
