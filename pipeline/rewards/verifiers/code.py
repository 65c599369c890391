"""The verdict on a completion's Python code: its reference is a Python source of assertions, which are run against it.
The code is hostile: tests and completion run in two confined processes, and values cross as JSON. Both are fresh
interpreters with an empty environment; the kernel kills them when this process dies."""

import functools
import json
import logging
import math
import os
import platform
import re
import signal
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from pipeline.rewards.verifiers.confined.confinement import NR
from pipeline.rewards.verifiers.outcome import Grade, Outcome

MAX_CHARS = 1_000_000
MAX_ANSWER_CHARS = 200
NO_SANDBOX = "no sandbox: "

# Possessive throughout: a line of a million tildes is read once.
_FENCE = re.compile(r"^[ \t]{0,3}+(`{3,}+|~{3,}+)[ \t]*+([^\s`]*+)[^\n`]*+$", re.MULTILINE)
_PYTHON = ("python", "python3", "py", "py3")
# The folder is put in front for our imports alone: a package's own would cost a confined process too much.
_BOOT = """
import sys
sys.path.insert(0, {folder!r})
from confined import {module}
del sys.path[0]
{module}.main{arguments!r}
"""


def check_code(completion: str, tests: str, *, timeout_s: float, memory_mb: int, landlock: bool = True) -> Grade:
    """Run the completion's code against `tests`, for `timeout_s` and a moment at most. Raises nothing on any text.

    `timeout_s` is wall-clock time and includes the start of both processes (about 0.05 s); `memory_mb` is the address
    space of each; without `landlock` both can read files (`confine`). `answer` holds the failing assertion, the
    exception, or why there is no label: at most 200 printable characters.
    """
    block = python_block(completion)
    code = completion if block is None else block
    if not tests.strip() or len(tests) > MAX_CHARS:
        return Grade(Outcome.unparsable_gold, f"{len(tests)} characters of tests")
    if not code.strip():
        return Grade(Outcome.no_answer, "")
    if len(code) > MAX_CHARS:
        return Grade(Outcome.error, f"{len(code)} characters of code, over {MAX_CHARS}")
    grade = _examined(code, tests, block is not None, timeout_s, memory_mb, landlock)
    if grade.answer.startswith(NO_SANDBOX):
        _warn(grade.answer.removeprefix(NO_SANDBOX))
    return grade._replace(answer=printable(grade.answer))


def blocks(text: str) -> list[tuple[str, str]]:
    """The fenced blocks, in order: the first word behind the fence in lower case, and the body. One that the text ends
    in the middle of counts, as in CommonMark."""
    fenced_blocks: list[tuple[str, str]] = []
    opened: re.Match[str] | None = None
    for fence in [*_FENCE.finditer(text), None]:
        if opened is None:
            opened = fence
        elif fence is None or (fence[1].startswith(opened[1]) and not fence[2]):
            start = min(opened.end() + 1, len(text))
            body = text[start : len(text) if fence is None else max(start, fence.start())]
            fenced_blocks.append((opened[2].lower().strip("{}."), body))
            opened = None
    return fenced_blocks


def python_block(text: str) -> str | None:
    """The last fenced block that is marked as Python, else the last without a mark; None without one."""
    fenced_blocks = blocks(text)
    marked = [body for language, body in fenced_blocks if language in _PYTHON]
    return (marked or [body for language, body in fenced_blocks if not language] or [None])[-1]


def printable(text: str) -> str:
    """Whatever a hostile process said, as one short line."""
    return "".join(c if c.isprintable() else " " for c in text[: 2 * MAX_ANSWER_CHARS])[:MAX_ANSWER_CHARS].strip()


def _examined(code: str, tests: str, fenced: bool, timeout_s: float, memory_mb: int, landlock: bool) -> Grade:
    """`fenced`: code that does not compile is wrong; else it is no answer."""
    if sys.platform != "linux" or platform.machine() not in NR or sys.byteorder != "little":
        here = f"{sys.platform} on {platform.machine()}"
        return Grade(Outcome.error, f"{NO_SANDBOX}not on {here}: check code on Linux on {' or '.join(NR)}")
    deadline = time.monotonic() + timeout_s
    limits = (os.getpid(), math.ceil(timeout_s) + 1, memory_mb, landlock)
    asked, asks = os.pipe()
    answers, answered = os.pipe()
    with ExitStack() as stack:
        try:
            completion = _start(stack, "completion", code, (limits, fenced, asked, answered))
            reference = _start(stack, "reference", tests, (limits, answers, asks))
        except OSError as error:
            return Grade(Outcome.error, f"{NO_SANDBOX}{error}: give this process room for two more")
        finally:
            for descriptor in (asked, asks, answers, answered):
                os.close(descriptor)
        try:
            verdict, _ = reference.communicate(timeout=timeout_s)
            outcome, answer = json.loads(verdict)
        except subprocess.TimeoutExpired:
            return Grade(Outcome.timeout, "")
        except ValueError:
            return Grade(Outcome.error, "the process of the tests ended without a verdict")
        return _how_it_ended(completion, deadline) if outcome == "ended" else Grade(Outcome(outcome), str(answer))


def _start(stack: ExitStack, module: str, source: str, arguments: tuple[Any, ...]) -> subprocess.Popen[bytes]:
    """A confined process, which is killed when the stack closes. The last two arguments are its descriptors."""
    boot = _BOOT.format(folder=str(Path(__file__).parent), module=module, arguments=arguments)
    with os.fdopen(os.memfd_create(module), "wb+") as source_file:  # no pipe to fill while it is not read, and no file
        source_file.write(source.encode("utf-8", "surrogatepass"))
        source_file.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", boot],
            stdin=source_file,
            stdout=subprocess.PIPE if module == "reference" else subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=arguments[-2:],
            env={},
            cwd="/",
            start_new_session=True,
        )
    stack.enter_context(process)
    stack.callback(process.kill)
    return process


def _how_it_ended(completion: subprocess.Popen[bytes], deadline: float) -> Grade:
    """What it means that the completion's process ended: its own doing, unless the kernel ended it."""
    try:
        status = completion.wait(max(0.0, min(1.0, deadline - time.monotonic())))
    except subprocess.TimeoutExpired:
        return Grade(Outcome.wrong, "the completion closed its channel")
    if status == -signal.SIGXCPU:
        return Grade(Outcome.timeout, "")
    if status == -signal.SIGKILL:  # it can't send signals, not even to itself
        return Grade(Outcome.error, "the kernel killed the completion, as it does when memory runs out")
    return Grade(Outcome.wrong, f"the completion ended its process: {status}")


@functools.cache
def _warn(reason: str) -> None:
    """Once a reason and process."""
    logging.getLogger(__name__).error("completions' code is not run, and has no label: %s", reason)
