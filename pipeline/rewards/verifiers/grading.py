"""The checker as rewards and evaluation call it: many checks in, one grade each out, in order. Plain numbers and texts
are checked here; what cannot be interrupted runs in workers that can be killed."""

import json
from collections.abc import Callable, Sequence
from functools import partial

from pipeline.core.conversation import OPENS, split
from pipeline.core.thoughts import behind_thoughts
from pipeline.recipe.rewards import Verifier
from pipeline.rewards.verifiers import mathematics, texts
from pipeline.rewards.verifiers.answers import MAX_ANSWER_CHARS, reference_answer
from pipeline.rewards.verifiers.code import check_code
from pipeline.rewards.verifiers.outcome import Grade, Outcome, VerifierTask
from pipeline.rewards.verifiers.pool import Pool, Work, WorkerFailure
from pipeline.rewards.verifiers.structured import check_json, same_calls
from pipeline.rewards.verifiers.texts import choice

CODE_GRACE_S = 5.0
"""On top of what the completion itself may take: its process starts and ends in that time."""


class Grader:
    """Workers that stay up between calls, which may come from any thread; close it when done.

    `timeout_s` and `code_timeout_s` run from the start of an item's execution; then its worker alone is killed and
    replaced. Equal checks of one call are run once.
    """

    def __init__(self, settings: Verifier) -> None:
        self._settings = settings
        check = partial(
            check_code,
            timeout_s=settings.code_timeout_s,
            memory_mb=settings.code_memory_mb,
            landlock=settings.sandbox == "landlock",
        )
        work = Work(partial(_in_worker, check_code=check), _warm_up)
        self._pool: Pool[VerifierTask, Grade] = Pool(work, settings.workers, settings.memory_mb)

    def __call__(self, checks: Sequence[VerifierTask | tuple[str, str]]) -> list[Grade]:
        each = [_alternatives(c if isinstance(c, VerifierTask) else VerifierTask(*c)) for c in checks]
        results = [_here(task) for tasks in each for task in tasks]
        todo = list(dict.fromkeys(check for check in results if isinstance(check, VerifierTask)))
        code_s = self._settings.code_timeout_s + CODE_GRACE_S
        deadlines_s = [code_s if check.kind == "code" else self._settings.timeout_s for check in todo]
        graded = dict(zip(todo, self._pool.run(todo, deadlines_s) if todo else (), strict=True))
        grades = (_storable(graded[one] if isinstance(one, VerifierTask) else one, one) for one in results)
        return [_best([next(grades) for _ in tasks]) for tasks in each]

    def close(self) -> None:
        self._pool.close()


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


def _storable(result: Grade | WorkerFailure, check: Grade | VerifierTask) -> Grade:
    """A grade whose answer is of bounded length, and text that can be encoded."""
    if isinstance(result, WorkerFailure):
        answer = check.completion if isinstance(check, VerifierTask) and check.kind == "math" else ""
        result = Grade(Outcome.timeout if result is WorkerFailure.timeout else Outcome.error, answer)
    return result._replace(answer=result.answer[:MAX_ANSWER_CHARS].encode("utf-8", "replace").decode("utf-8"))
