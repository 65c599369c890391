"""The checker as rewards and evaluation call it: many checks in, one grade each out, in order.

Plain numbers and texts are checked here; what cannot be interrupted runs in workers that can be killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from pipeline.core.conversation import OPENS, split
from pipeline.recipe.rewards import Verifier
from pipeline.rewards.verifiers import mathematics, texts
from pipeline.rewards.verifiers.answers import MAX_ANSWER_CHARS, reference_answer
from pipeline.rewards.verifiers.code import check_code
from pipeline.rewards.verifiers.outcome import Grade, Outcome, TimeBudget, VerifierTask
from pipeline.rewards.verifiers.pool import Pool, Work, WorkerFailure
from pipeline.rewards.verifiers.structured import check_json, same_calls
from pipeline.rewards.verifiers.texts import choice
from pipeline.traces.thoughts import behind_thoughts

_FAILED = {WorkerFailure.timeout: Outcome.timeout, WorkerFailure.refused: Outcome.budget}
CODE_GRACE_S = 5.0
"""On top of what the completion itself may take: its process starts and ends in that time."""


class Grader:
    """`grade` with workers that stay up between calls: for a process that grades batch after batch, in any thread.

    `timeout_s` and `code_timeout_s` run from the start of an item's execution; then its worker alone is killed and
    replaced. Equal checks of one call are run once.
    """

    def __init__(
        self,
        workers: int,
        timeout_s: float,
        *,
        code_timeout_s: float = 10.0,
        code_memory_mb: int = 512,
        code_landlock: bool = True,
        memory_mb: int = 3072,
    ) -> None:
        self._timeout_s, self._code_deadline_s = timeout_s, code_timeout_s + CODE_GRACE_S
        check = partial(check_code, timeout_s=code_timeout_s, memory_mb=code_memory_mb, landlock=code_landlock)
        function = partial(_in_worker, check_code=check)
        self._pool: Pool[VerifierTask, Grade] = Pool(Work(function, _warm_up), workers, memory_mb)

    def __call__(
        self,
        checks: Sequence[VerifierTask | tuple[str, str]],
        whose: Sequence[str] = (),
        budget: TimeBudget | None = None,
    ) -> list[Grade]:
        """`whose`: by whom each is, for the `budget` of time-outs; a check that it has nothing left for is not run."""
        each = [_alternatives(c if isinstance(c, VerifierTask) else VerifierTask(c[0], c[1])) for c in checks]
        if all(len(tasks) == 1 for tasks in each):
            return self._grade([tasks[0] for tasks in each], whose, budget)
        owners = [owner for tasks, owner in zip(each, whose, strict=False) for _ in tasks]
        grades = iter(self._grade([task for tasks in each for task in tasks], owners, budget))
        return [_best([next(grades) for _ in tasks]) for tasks in each]

    def _grade(self, tasks: Sequence[VerifierTask], whose: Sequence[str], budget: TimeBudget | None) -> list[Grade]:
        results = list(map(_here, tasks))
        todo = list(dict.fromkeys(check for check in results if isinstance(check, VerifierTask)))
        deadlines_s = [self._code_deadline_s if check.kind == "code" else self._timeout_s for check in todo]
        owners: dict[VerifierTask, str] = {}
        for one, owner in zip(results, whose, strict=False):
            if isinstance(one, VerifierTask):
                owners.setdefault(one, owner)

        def charge(number: int, result: Grade | WorkerFailure) -> None:
            if budget is not None and result is WorkerFailure.timeout:
                budget.charge(owners[todo[number]], deadlines_s[number])

        def refuses(number: int) -> bool:
            return budget is not None and budget.is_spent(owners[todo[number]])

        graded = dict(zip(todo, self._pool.run(todo, deadlines_s, charge, refuses) if todo else (), strict=True))
        return [_readable(graded[one], one) if isinstance(one, VerifierTask) else _readable(one) for one in results]

    def close(self) -> None:
        self._pool.close()


def grader_of(settings: Verifier) -> Grader:
    """The grader that a recipe describes; close it when done."""
    return Grader(
        settings.workers,
        settings.timeout_s,
        code_timeout_s=settings.code_timeout_s,
        code_memory_mb=settings.code_memory_mb,
        code_landlock=settings.sandbox == "landlock",
        memory_mb=settings.memory_mb,
    )


@contextmanager
def grader(
    workers: int = 2,
    timeout_s: float = 5.0,
    *,
    code_timeout_s: float = 10.0,
    code_memory_mb: int = 512,
    memory_mb: int = 3072,
) -> Generator[Grader]:
    """A `Grader` whose workers end with the block."""
    with closing(
        Grader(workers, timeout_s, code_timeout_s=code_timeout_s, code_memory_mb=code_memory_mb, memory_mb=memory_mb)
    ) as check:
        yield check


def grade(checks: Sequence[VerifierTask | tuple[str, str]], *, workers: int = 2, timeout_s: float = 5.0) -> list[Grade]:
    """Grade once; the result follows the input, whatever any single item does."""
    with grader(workers, timeout_s) as check:
        return check(checks)


def readable(reference: str, kind: str) -> bool:
    """Whether a check of this kind finds an answer in a reference, as far as this can be seen without a worker."""
    if kind == "choice" or (kind in ("normalised", "contains") and texts.OPTION.fullmatch(reference)):
        return choice("", reference).outcome is not Outcome.unparsable_gold
    if kind == "json_schema":
        return check_json("", reference).outcome is not Outcome.unparsable_gold
    return kind not in ("normalised", "contains") or bool(texts.normalise(reference_answer(reference)))


def _alternatives(check: VerifierTask) -> list[VerifierTask]:
    """The check against each answer of a reference that is a JSON list of texts: any of them is right."""
    if check.kind in ("calls", "code", "json_schema") or not check.reference.lstrip().startswith('["'):
        return [check]
    try:
        listed = json.loads(check.reference)
    except ValueError:
        return [check]
    if not all(isinstance(each, str) for each in listed):
        return [check]
    return [check._replace(reference=each) for each in dict.fromkeys(listed)] or [check]


def _best(grades: Sequence[Grade]) -> Grade:
    """Correct where one is; without a label where one of the others has none."""
    return min(grades, key=lambda grade: (grade.outcome is not Outcome.correct, grade.outcome.score is not None))


def _here(check: VerifierTask) -> Grade | VerifierTask:
    """The verdict where this process can give it, else what a worker has to check. Thoughts are no part of an answer,
    and texts are checked without calls."""
    said = behind_thoughts(check.completion)
    if said is None:
        return Grade(Outcome.no_answer, "")
    check = check._replace(completion=said)
    if check.kind != "calls" and OPENS in check.completion:
        check = check._replace(completion=split(check.completion)[0])
    match check.kind:
        case "calls":
            return same_calls(check.completion, check.reference)
        case "exact":
            return texts.exact(check.completion, check.reference)
        case "choice":
            return choice(check.completion, check.reference)
        case "normalised" if check.completion.isascii() and check.reference.isascii():
            return texts.normalised(check.completion, check.reference)
        case "contains" if check.completion.isascii() and check.reference.isascii():
            return texts.contains(check.completion, check.reference)
        case "math":
            result = mathematics.without_math_verify(check.completion, check.reference)
            return result if isinstance(result, Grade) else VerifierTask(*result)
        case _:
            return check


def _warm_up() -> None:
    mathematics.warm_up()
    check_json("1", "true")


def _in_worker(check: VerifierTask, *, check_code: Callable[[str, str], Grade]) -> Grade:
    if check.kind == "math":
        return Grade(mathematics.compare(check.completion, check.reference), check.completion)
    by_kind = {
        "normalised": texts.normalised,
        "contains": texts.contains,
        "json_schema": check_json,
        "code": check_code,
    }
    return by_kind[check.kind](check.completion, check.reference)


def _readable(result: Grade | WorkerFailure, check: VerifierTask | None = None) -> Grade:
    """A grade whose answer can be stored anywhere: of bounded length, and text that can be encoded."""
    if isinstance(result, WorkerFailure):
        assert check is not None
        outcome = _FAILED.get(result, Outcome.error)
        result = Grade(outcome, check.completion if check.kind == "math" else "")
    answer = result.answer[:MAX_ANSWER_CHARS].encode("utf-8", "replace").decode("utf-8")
    return Grade(result.outcome, answer)
