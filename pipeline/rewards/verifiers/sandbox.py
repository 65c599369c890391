"""Two confined processes for one code check: one runs the completion, the other its tests, with a pipe between them.
Both are fresh interpreters with an empty environment; the kernel kills them when this process dies."""

import functools
import json
import logging
import math
import os
import platform
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.rewards.verifiers.confined import seccomp

MAX_VERDICT_BYTES = 64 << 10
_HERE = Path(__file__).parent
# Packages without their __init__, whose imports a confined process neither needs nor could afford.
_BOOT = """
import sys, types
for name, folder in {packages!r}:
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [folder]
from pipeline.rewards.verifiers.confined import {module}
{module}.main{arguments!r}
"""


class CodeResult(NamedTuple):
    """`outcome` is one of verifiers.Outcome by name; `answer` a word on it, unchecked text."""

    outcome: str
    answer: str


def unavailable() -> str:
    """Why this machine can't run a completion, or ''."""
    if not sys.platform.startswith("linux"):
        return f"{sys.platform} has no seccomp and no Landlock: check code on Linux 5.13 or later"
    if platform.machine() not in seccomp.NR or sys.byteorder != "little":
        return f"no system call filter for {platform.machine()}: check code on {' or '.join(seccomp.NR)}"
    return ""


def examine(
    code: str, tests: str, *, fenced: bool, timeout_s: float, memory_mb: int, landlock: bool = True
) -> CodeResult:
    """Run `tests` against `code`. `fenced`: code that does not compile is wrong; else it is no answer.

    `timeout_s` is wall-clock time and includes the start of both processes (about 0.05 s); `memory_mb` is the address
    space of each; without `landlock` both can read files (`confine`). Raises nothing that the two texts could cause.
    """
    if reason := unavailable():
        return _no_sandbox(reason)
    deadline = time.monotonic() + timeout_s
    asked, asks = os.pipe()
    answers, answered = os.pipe()
    verdict, decides = os.pipe()
    children: list[subprocess.Popen[bytes]] = []
    try:
        limits = (os.getpid(), math.ceil(timeout_s) + 1, memory_mb, landlock)
        try:
            completion = _start("completion", code, (limits, fenced, asked, answered), (asked, answered))
            children.append(completion)
            children.append(_start("reference", tests, (limits, answers, asks, decides), (answers, asks, decides)))
        except OSError as error:
            return _no_sandbox(f"{error}: give this process room for two more")
        finally:
            for descriptor in (asked, asks, answers, answered, decides):
                os.close(descriptor)
        result = _read_verdict(verdict, deadline)
        if result.outcome == "ended":
            return _how_it_ended(completion, deadline)
        return _no_sandbox(result.answer) if result.answer.startswith("no sandbox: ") else result
    finally:
        os.close(verdict)
        for child in children:
            child.kill()
        for child in children:
            child.wait()


def _start(
    module: str, source: str, arguments: tuple[Any, ...], descriptors: tuple[int, ...]
) -> subprocess.Popen[bytes]:
    names = ("pipeline", "pipeline.rewards", "pipeline.rewards.verifiers")
    packages = [
        (name, str(folder)) for name, folder in zip(names, (_HERE.parents[1], _HERE.parent, _HERE), strict=True)
    ]
    boot = _BOOT.format(packages=packages, module=module, arguments=arguments)
    with os.fdopen(os.memfd_create(module), "wb+") as source_file:  # no pipe to fill while nobody reads, and no file
        source_file.write(source.encode("utf-8", "surrogatepass"))
        source_file.seek(0)
        return subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", boot],
            stdin=source_file,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=descriptors,
            env={},
            cwd="/",
            start_new_session=True,
        )


def _read_verdict(descriptor: int, deadline: float) -> CodeResult:
    data = b""
    while not data.endswith(b"\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return CodeResult("timeout", "")
        part = os.read(descriptor, MAX_VERDICT_BYTES)
        if not part or len(data) > MAX_VERDICT_BYTES:
            return CodeResult("error", "the process of the tests ended without a verdict")
        data += part
    try:
        outcome, answer = json.loads(data)
    except ValueError:
        return CodeResult("error", "the process of the tests broke its verdict")
    return CodeResult(str(outcome), str(answer))


def _how_it_ended(completion: subprocess.Popen[bytes], deadline: float) -> CodeResult:
    """What it means that the completion's process ended: its own doing, unless the kernel ended it."""
    try:
        status = completion.wait(max(0.0, min(1.0, deadline - time.monotonic())))
    except subprocess.TimeoutExpired:
        return CodeResult("wrong", "the completion closed its channel")
    if status == -signal.SIGXCPU:
        return CodeResult("timeout", "")
    if status == -signal.SIGKILL:  # it can't send signals, not even to itself
        return CodeResult("error", "the kernel killed the completion, as it does when memory runs out")
    how = f"signal {signal.Signals(-status).name}" if status < 0 else f"status {status}"
    return CodeResult("wrong", f"the completion ended its process: {how}")


def _no_sandbox(reason: str) -> CodeResult:
    reason = reason.removeprefix("no sandbox: ")
    _warn(reason)
    return CodeResult("error", f"no sandbox: {reason}")


@functools.cache
def _warn(reason: str) -> None:
    """Once a reason and process."""
    logging.getLogger(__name__).error("completions' code is not run, and has no label: %s", reason)
