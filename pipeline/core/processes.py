"""How the processes of the loop end: with their parent, with the block that asks them, or with their session. A process
that SIGKILL ends cannot stop its children: an orphaned training would write to its successor's folder."""

import ctypes
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import IO, NamedTuple, Self

POLL_S = 0.1
TAIL_LINES = 30
UTF8 = {"PYTHONIOENCODING": "utf-8"}
"""For what a Python prints to us and reads from us, whatever the locale."""
WATCHER_S = 15.0
"""That a watcher has beyond the grace, to end the rest by SIGKILL."""


def die_with_parent(signum: signal.Signals = signal.SIGKILL, parent: int | None = None) -> None:
    """Ask the kernel to send `signum` to this process when its parent dies (prctl(2), Linux; elsewhere a no-op).
    `parent`: the pid that the parent had, from itself. One that died before this call, while this process was still
    importing, is noticed only by that."""
    if not sys.platform.startswith("linux"):
        return
    parent = os.getppid() if parent is None else parent
    pr_set_pdeathsig = 1
    if ctypes.CDLL(None, use_errno=True).prctl(pr_set_pdeathsig, signum.value) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # the parent died before the request was in force
        os.kill(os.getpid(), signum)


def raise_file_limit() -> None:
    """Let this process open as many files as its hard limit says; shells and services start it with 1,024."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # a kernel that gives no process as many
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


class PipedProcess(NamedTuple):
    """A process that is asked on its input and answers on its output; `errors`: a file with what else it prints.
    `name`: as a sentence begins."""

    name: str
    process: subprocess.Popen[str]
    errors: IO[str]

    def ended(self) -> tuple[int, str]:
        """Wait for its end: the exit code, and the last lines that it printed."""
        code = self.process.wait()
        self.errors.seek(0)
        return code, "".join(self.errors.readlines()[-TAIL_LINES:]).rstrip()

    def send(self, text: str) -> None:
        """To its input; its output says whether it has ended."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(text)
            self.process.stdin.flush()

    def line(self) -> str:
        """The next of its output. Raises RuntimeError with its last lines where it ended instead."""
        assert self.process.stdout is not None
        if not (answer := self.process.stdout.readline()):
            code, tail = self.ended()
            raise RuntimeError(f"{self.name} ended with exit code {code}. Its last lines:\n{tail}")
        return answer

    def ask(self, line: str) -> str:
        """The line that it answers. Raises RuntimeError as `line`."""
        self.send(f"{line}\n")
        return self.line()


@contextmanager
def piped(name: str, command: Sequence[str]) -> Generator[PipedProcess]:
    """A process that is killed when the block ends, however it ends: an interrupted step leaves none behind."""
    environment = {**os.environ, **UTF8}
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, encoding="utf-8", env=environment
        ) as process,
    ):
        try:
            yield PipedProcess(name, process, errors)
        finally:
            process.kill()
            assert process.stdin is not None
            with suppress(BrokenPipeError):  # what it was asked when it died is still to be written
                process.stdin.close()


class Child:
    """One supervised process: its lines, its exit code, and its end with the block or with this process. A program of
    ours ends with its parent by `die_with_parent`. For one that does not, `watched`: a watcher ends all that it
    started."""

    def __init__(
        self,
        command: Sequence[str],
        grace_s: float,
        *,
        watched: bool = False,
        cwd: Path | None = None,
        environment: Mapping[str, str] | None = None,
        output: IO[bytes] | None = None,
    ) -> None:
        """`grace_s`: from SIGTERM to SIGKILL. `environment`: added to this process's own; a secret belongs there, for
        every user can read arguments. `output`: a file that takes the lines."""
        if watched:
            command = [sys.executable, "-m", "pipeline.core.processes", str(os.getpid()), str(grace_s), *command]
        self._grace_s = grace_s + (WATCHER_S if watched else 0.0)
        self.tail: list[str] = []
        """The last lines that were read."""
        self._process = subprocess.Popen(
            command,
            cwd=cwd,
            env={**os.environ, **UTF8, **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE if output is None else output,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.end()
        if self._process.stdout is not None:
            self._process.stdout.close()

    @property
    def code(self) -> int | None:
        """The exit code, negative for a signal (of the watched 128 + n); None while it runs."""
        return self._process.poll()

    def lines(self) -> Iterator[str]:
        """What it writes, to its end."""
        assert self._process.stdout is not None, "its lines go to a file"
        for line in self._process.stdout:
            self.tail = [*self.tail[1 - TAIL_LINES :], line.rstrip()]
            yield line

    def wait(self) -> int:
        return self._process.wait()

    def end(self) -> None:
        """SIGTERM, and SIGKILL after the grace or an interrupt; returns when it is gone."""
        try:
            self._process.terminate()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(self._grace_s)
        finally:
            self._process.kill()
            self._process.wait()


def session_members(leader: int) -> list[int]:
    """Pids of the processes of the session that `leader` began, also after its end; zombies don't count (Linux)."""
    members: list[int] = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()  # proc(5), from field 3 on
                if fields[0] not in b"ZX" and int(fields[3]) == leader:
                    members.append(int(entry.name))
    return members


def end_session(leader: int, signum: signal.Signals, grace_s: float) -> None:
    """End every process of a session: `signum` to its leader, and SIGKILL to who is left after `grace_s`. A
    KeyboardInterrupt cuts the grace short. Processes that have begun a session of their own are not ended."""
    if session_members(leader):
        _send(leader, signum)
    deadline = time.monotonic() + grace_s
    with suppress(KeyboardInterrupt):
        while session_members(leader) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    while left := session_members(leader):  # again: who is being killed may still fork
        for pid in left:
            _send(pid, signal.SIGKILL)
        time.sleep(POLL_S)


def _send(pid: int, signum: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signum)


def watch(parent: int, grace_s: float, command: list[str]) -> int:
    """`python -m pipeline.core.processes PARENT GRACE_S COMMAND...`: run the command in a session of its own, and end
    the whole session with the first of these: the parent (then at once), the command, or SIGTERM (with the grace).
    Returns the exit code, 128 + n for signal n. A server that is killed leaves the engine and the workers that it
    started on the device; its watcher does not. After SIGKILL to the watcher the command gets SIGTERM alone."""
    asked_to_end: list[int] = []
    signal.signal(signal.SIGTERM, lambda signum, frame: asked_to_end.append(signum))
    ends_with_watcher = partial(die_with_parent, signal.SIGTERM, os.getpid())
    process = subprocess.Popen(command, start_new_session=True, preexec_fn=ends_with_watcher)

    def runs() -> bool:
        # A zombie is not waited for: until then no other process can have its pid.
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    try:
        while runs() and os.getppid() == parent and not asked_to_end:
            time.sleep(POLL_S)
    finally:
        polite = runs() and os.getppid() == parent
        end_session(process.pid, signal.SIGTERM, grace_s if polite else 0.0)
    code = process.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(watch(int(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]))
