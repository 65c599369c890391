"""The verdict on a completion's Python code: its reference is a Python source of assertions, which are run against it.
The code is hostile: tests and completion run in two confined processes (sandbox.py), and values cross as JSON."""

import re
from typing import NamedTuple

from pipeline.rewards.verifiers.outcome import Grade, Outcome
from pipeline.rewards.verifiers.sandbox import examine

MAX_CHARS = 1_000_000
MAX_ANSWER_CHARS = 200

# Possessive throughout: a line of a million tildes is read once.
_FENCE = re.compile(r"^[ \t]{0,3}+(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$", re.MULTILINE)
_PYTHON = ("python", "python3", "py", "py3")


def check_code(completion: str, tests: str, *, timeout_s: float, memory_mb: int, landlock: bool = True) -> Grade:
    """Run the completion's code against `tests`, for `timeout_s` and a moment at most. Raises nothing on any text.

    `answer` holds the failing assertion, the exception, or why there is no label: at most 200 printable characters.
    """
    block = python_block(completion)
    code = completion if block is None else block.body
    if not tests.strip() or len(tests) > MAX_CHARS:
        return Grade(Outcome.unparsable_gold, f"{len(tests)} characters of tests")
    if not code.strip():
        return Grade(Outcome.no_answer, "")
    if len(code) > MAX_CHARS:
        return Grade(Outcome.error, f"{len(code)} characters of code, over {MAX_CHARS}")
    verdict = examine(
        code, tests, fenced=block is not None, timeout_s=timeout_s, memory_mb=memory_mb, landlock=landlock
    )
    return Grade(Outcome(verdict.outcome), printable(verdict.answer))


class CodeBlock(NamedTuple):
    """A fenced block: the first word behind its fence in lower case, and where its body starts."""

    language: str
    start: int
    body: str


def blocks(text: str) -> list[CodeBlock]:
    """The fenced blocks, in order. One that the text ends in the middle of counts, as in CommonMark."""
    fenced_blocks: list[CodeBlock] = []
    opened: re.Match[str] | None = None
    for fence in [*_FENCE.finditer(text), None]:
        if opened is None:
            opened = fence
        elif fence is None or (fence[1].startswith(opened[1]) and not fence[2]):
            start = min(opened.end() + 1, len(text))
            body = text[start : len(text) if fence is None else max(start, fence.start())]
            fenced_blocks.append(CodeBlock(opened[2].lower().strip("{}."), start, body))
            opened = None
    return fenced_blocks


def python_block(text: str) -> CodeBlock | None:
    """The last fenced block that is marked as Python, else the last without a mark; None without one."""
    fenced_blocks = blocks(text)
    marked = [block for block in fenced_blocks if block.language in _PYTHON]
    plain = [block for block in fenced_blocks if not block.language]
    return (marked or plain or [None])[-1]


def printable(text: str) -> str:
    """Whatever a hostile process said, as one short line."""
    return "".join(c if c.isprintable() else " " for c in text[: 2 * MAX_ANSWER_CHARS])[:MAX_ANSWER_CHARS].strip()
