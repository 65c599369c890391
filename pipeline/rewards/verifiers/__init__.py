"""The one checker of answers, shared by the reward and the evaluation so that they cannot drift apart.

Owns extraction (`####` and `\\boxed{}`) and the verdict on one answer. Plain numbers are compared exactly, in this
process; everything else goes to math-verify in worker processes that are killed at a deadline, because neither its
parser nor C-level integer arithmetic can be interrupted from inside. A check that failed says so; it is never "wrong".
"""

from __future__ import annotations

import logging
import re
import resource
from collections.abc import Generator, Sequence
from concurrent.futures import TimeoutError as DeadlineError
from contextlib import contextmanager
from enum import StrEnum
from fractions import Fraction
from multiprocessing import get_context
from typing import Any, NamedTuple

from pebble import ProcessExpired, ProcessPool

VERSION = "math-verify/1"
"""Part of every label's provenance and of the evaluation's protocol; changes when a verdict could change."""

MAX_ANSWER_CHARS = 400
WORKER_MEMORY_BYTES = 3 << 30
TASKS_PER_WORKER = 500

_NUMBER = re.compile(r"\$?\s*([+-]?)\s*\$?(\d{1,30}(?:,\d{3})*)(\.\d{1,30})?\s*\.?")


class Outcome(StrEnum):
    """What the check found. Only `correct` and `wrong` are labels; the others are reasons for having none, except
    `no_answer`, which counts as wrong: a completion that gives no answer has failed the prompt."""

    correct = "correct"
    wrong = "wrong"
    no_answer = "no_answer"
    unparsable_gold = "unparsable_gold"
    timeout = "timeout"
    error = "error"

    @property
    def score(self) -> float | None:
        """1.0, 0.0, or None when the check itself failed."""
        return {"correct": 1.0, "wrong": 0.0, "no_answer": 0.0}.get(self.value)


class Grade(NamedTuple):
    """One verdict with the answer that was found ('' when none was)."""

    outcome: Outcome
    answer: str


def final_answer(text: str) -> str | None:
    """The answer that a solution commits to: what follows its last `####`, else its last `\\boxed{...}`, else None."""
    _, marker, tail = text.rpartition("####")
    if marker:
        return tail.strip().split("\n")[0].strip() or None
    start = text.rfind("\\boxed{")
    if start < 0:
        return None
    depth, begin = 0, start + len("\\boxed")
    for position in range(begin, min(len(text), begin + 10 * MAX_ANSWER_CHARS)):
        depth += {"{": 1, "}": -1}.get(text[position], 0)
        if depth == 0:
            return text[begin + 1 : position].strip() or None
    return None


def reference_answer(text: str) -> str:
    """The answer inside a reference, which may be a bare answer or a whole solution."""
    return final_answer(text) or text.strip()


def plain_number(text: str) -> Fraction | None:
    """The exact value of `1,234`, `$18`, `-0.5` or `7.`; None for anything else (math-verify's business)."""
    match = _NUMBER.fullmatch(text)
    if match is None:
        return None
    sign, whole, decimals = match.groups()
    return Fraction(f"{sign}{whole.replace(',', '')}{decimals or ''}")


def grade(pairs: Sequence[tuple[str, str]], *, workers: int = 2, timeout_s: float = 5.0) -> list[Grade]:
    """Grade (completion, reference) pairs; the result follows the input, whatever any single item does.

    `timeout_s` runs from the start of an item's execution; then its worker alone is killed and replaced.
    """
    with grader(workers=workers, timeout_s=timeout_s) as check:
        return check(pairs)


class Grader:
    """`grade` with workers that stay up between calls: for a training process that grades batch after batch."""

    def __init__(self, workers: int, timeout_s: float) -> None:
        self._workers, self._timeout_s = workers, timeout_s
        self._pool: ProcessPool | None = None

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> list[Grade]:
        quick = [_without_workers(completion, reference) for completion, reference in pairs]
        waiting = {
            i: self._workers_pool().schedule(
                _with_math_verify, args=[quick_answer(pairs[i][0]), reference_answer(pairs[i][1])],
                timeout=self._timeout_s,
            )
            for i, found in enumerate(quick)
            if found is None
        }  # fmt: skip
        slow = {i: _collect(future, quick_answer(pairs[i][0])) for i, future in waiting.items()}
        return [found if found is not None else slow[i] for i, found in enumerate(quick)]

    def _workers_pool(self) -> ProcessPool:
        if self._pool is None:  # most batches never need a worker: plain numbers are compared here
            self._pool = ProcessPool(
                max_workers=self._workers,
                max_tasks=TASKS_PER_WORKER,
                initializer=_limit_memory,
                context=get_context("spawn"),
            )
        return self._pool

    def close(self) -> None:
        if self._pool is not None:
            self._pool.stop()
            self._pool.join()
            self._pool = None


@contextmanager
def grader(workers: int = 2, timeout_s: float = 5.0) -> Generator[Grader]:
    """A `Grader` whose workers end with the block."""
    check = Grader(workers, timeout_s)
    try:
        yield check
    finally:
        check.close()


def quick_answer(completion: str) -> str:
    return final_answer(completion) or ""


def _without_workers(completion: str, reference: str) -> Grade | None:
    """The verdict where plain text and exact numbers decide, else None."""
    gold = reference_answer(reference)
    if not gold or len(gold) > MAX_ANSWER_CHARS:
        return Grade(Outcome.unparsable_gold, "")
    answer = final_answer(completion)
    if answer is None or not any(c.isalnum() for c in answer):
        return Grade(Outcome.no_answer, answer or "")
    if answer == gold:
        return Grade(Outcome.correct, answer)
    if len(answer) > MAX_ANSWER_CHARS:
        return Grade(Outcome.error, answer[:MAX_ANSWER_CHARS])
    mine, golden = plain_number(answer), plain_number(gold)
    if mine is None or golden is None:
        return None
    return Grade(Outcome.correct if mine == golden else Outcome.wrong, answer)


def _with_math_verify(answer: str, gold: str) -> str:
    """Runs in a worker. Time-outs are the caller's: math-verify's own come back as a plain False."""
    from math_verify import parse, verify

    no_limit: Any = None  # typed as int, documented as None

    parsed_gold = parse(_as_math(gold), parsing_timeout=no_limit, raise_on_error=True)
    if not parsed_gold:
        return Outcome.unparsable_gold
    parsed = parse(_as_math(answer), parsing_timeout=no_limit, raise_on_error=True)
    if not parsed:
        return Outcome.no_answer
    same = verify(parsed_gold, parsed, timeout_seconds=None, raise_on_error=True)
    return Outcome.correct if same else Outcome.wrong


def _as_math(text: str) -> str:
    return text if "$" in text or "\\boxed" in text else f"${text}$"


def _collect(future: Any, answer: str) -> Grade:
    try:
        return Grade(Outcome(future.result()), answer)
    except DeadlineError:
        return Grade(Outcome.timeout, answer)
    except ProcessExpired:
        return Grade(Outcome.error, answer)
    except Exception:  # the boundary to a parser that may raise anything: a failed check is data, not a crash
        return Grade(Outcome.error, answer)


def _limit_memory() -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call that time-outs are ours
    resource.setrlimit(resource.RLIMIT_AS, (WORKER_MEMORY_BYTES, WORKER_MEMORY_BYTES))
