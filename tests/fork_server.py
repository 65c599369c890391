"""A process that has imported the trainer and the sampler, and forks one for each start: the imports are paid once.

They take up to nine seconds of a core, and a short training takes less. What is forked runs the same entry point with
the same arguments, environment and directory, in a process of its own that can be signalled and killed.
"""

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any, Self

from benchmarks.kills import Attempt
from tests.processes import is_alive

ENVIRONMENT = {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "DISABLE_MLFLOW_INTEGRATION": "TRUE"}
"""As the entry points set it, for what is imported here."""
SLOT = "pipeline.serving.slot_server"


class ForkedProcess:
    """As much of `subprocess.Popen` as the launchers of the sampler and of the trainer use."""

    def __init__(self, output: int | None, reply: int, input: int | None = None) -> None:
        self.stdout = None if output is None else os.fdopen(output, errors="replace")
        self.stdin = None if input is None else os.fdopen(input, "w")
        self.returncode: int | None = None
        self._reply = os.fdopen(reply)
        self.pid = int(self._reply.readline())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in (self.stdin, self.stdout):
            if stream is not None:
                with suppress(BrokenPipeError):
                    stream.close()
        self.wait()

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._reply], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            self.returncode = int(self._reply.readline())
            self._reply.close()
        return self.returncode

    def poll(self) -> int | None:
        with suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ForkServer:
    """Forks what `python -m MODULE ARGUMENTS` would run. `output` collects what the trainers of `attempt` print.

    The process behind it is of all workers that name the same `address`, a path for its socket: the first one starts
    it, and it ends with the last one.
    """

    def __init__(self, output: Path, address: Path) -> None:
        output.parent.mkdir(parents=True, exist_ok=True)
        self.output, self._before = output, 0
        self._process: subprocess.Popen[bytes] | None = None
        self._socket, self._asking = socket.socket(socket.AF_UNIX), threading.Lock()
        with address.with_suffix(".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self._socket.connect_ex(str(address)):  # nobody listens there
                self._process = _start(address)
                self._socket.connect(str(address))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._socket.close()
        if self._process is not None:
            self._process.wait()

    def popen(
        self, command: Sequence[str], stdin: Any = None, stdout: Any = None, stderr: Any = None, **more: Any
    ) -> Any:
        """What `subprocess.Popen` makes of it; its output goes to the given file or to a pipe of text, and its input
        comes from a pipe where asked. A slot is forked without its watcher: it ends with who started it anyway."""
        if command[2] == "pipeline.core.processes" and SLOT not in command:  # a server that is not imported here
            return subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, **more)
        ours, theirs = os.pipe() if stdout in (None, subprocess.PIPE) else (None, os.dup(stdout.fileno()))
        read, write = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), None)
        errors = os.dup(theirs if stderr in (None, subprocess.STDOUT) else stderr.fileno())
        unwatched = command[command.index(SLOT) - 2 :] if SLOT in command else command
        return ForkedProcess(ours, self._fork(unwatched, theirs, errors, read, more.get("env")), write)

    def attempt(self, plan: Path, sent: signal.Signals | None = None, after_s: float = 0.0, at: str = "") -> Attempt:
        """Run the trainer once; with `sent`, send it that signal, if it still runs.

        That is once it has printed `at`, and so many seconds have passed.
        """
        output = os.open(self.output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._before = os.fstat(output).st_size
        process = ForkedProcess(None, self._fork([sys.executable, "-m", "pipeline.training", str(plan)], output))
        if sent is not None:
            until = time.monotonic() + after_s
            while is_alive(process.pid) and (time.monotonic() < until or at not in self.said()):
                time.sleep(0.01)
            process.send_signal(sent)
        return Attempt(sent, process.wait())

    def said(self) -> str:
        """What the newest attempt has printed, up to now."""
        return self.output.read_bytes()[self._before :].decode(errors="replace") if self.output.exists() else ""

    def _fork(
        self,
        command: Sequence[str],
        output: int,
        errors: int | None = None,
        input: int | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """The descriptor that the new process's pid and exit code come from; those given are closed here."""
        streams = [
            os.open(os.devnull, os.O_RDONLY) if input is None else input,
            output,
            os.dup(output) if errors is None else errors,
        ]
        python, minus_m, *argv = command
        assert (python, minus_m) == (sys.executable, "-m"), command
        ours, theirs = os.pipe()
        given = dict(os.environ if environment is None else environment)
        asked = {"argv": argv, "parent": os.getpid(), "cwd": str(Path.cwd()), "environment": given}
        message = json.dumps(asked).encode()
        with self._asking:
            socket.send_fds(self._socket, [len(message).to_bytes(4, "big")], [*streams, theirs])
            self._socket.sendall(message)
        for each in (*streams, theirs):
            os.close(each)
        return ours


def as_subprocess(server: ForkServer) -> Any:
    """In place of a module's `subprocess`: `Popen` forks."""
    names = ("PIPE", "STDOUT", "DEVNULL", "TimeoutExpired", "CalledProcessError")
    return SimpleNamespace(Popen=server.popen, **{name: getattr(subprocess, name) for name in names})


def _start(address: Path) -> subprocess.Popen[bytes]:
    address.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        listener.listen()
        return subprocess.Popen(
            [sys.executable, "-m", "tests.fork_server", str(listener.fileno()), str(address)],
            pass_fds=[listener.fileno()],
            env={**os.environ, "OMP_NUM_THREADS": "1", **ENVIRONMENT},
            cwd=Path(__file__).parent.parent,
        )


def _serve(descriptor: int, address: Path) -> None:
    """Each request gets a process that forks the one asked for, and tells its pid and then its exit code."""
    from pipeline.serving import __main__ as sampler
    from pipeline.serving import slot_server
    from pipeline.training import worker

    assert None not in (worker, sampler, slot_server), "imported for their imports"
    monitors: set[int] = set()
    listener = socket.socket(fileno=descriptor)
    clients = [listener.accept()[0]]
    while clients:
        for ready in select.select([listener, *clients], [], [])[0]:
            if ready is listener:
                clients.append(listener.accept()[0])
                continue
            monitors -= {pid for pid in monitors if os.waitpid(pid, os.WNOHANG)[0]}
            if (monitor := _monitored(ready, [listener, *clients])) is not None:
                monitors.add(monitor)
            else:
                clients.remove(ready)
                ready.close()
        if not clients:
            address.unlink(missing_ok=True)
            if select.select([listener], [], [], 0)[0]:  # who came just before that
                clients.append(listener.accept()[0])


def _monitored(client: socket.socket, sockets: Sequence[socket.socket]) -> int | None:
    """The pid of the process that does what the client asks for next; None when the client has ended. `sockets`: what
    that process must not hold open."""
    from pipeline.core.processes import die_with_parent

    header, descriptors, _, _ = socket.recv_fds(client, 4, 4)
    if not header:
        return None
    wanted, message = int.from_bytes(header, "big"), b""
    while len(message) < wanted:
        message += client.recv(wanted - len(message))
    monitor = os.fork()
    if monitor == 0:
        for each in sockets:
            each.close()
        die_with_parent()
        _monitor(json.loads(message), *descriptors)
        os._exit(0)
    for each in descriptors:
        os.close(each)
    return monitor


def _monitor(asked: dict[str, Any], input: int, output: int, errors: int, reply: int) -> None:
    child = os.fork()
    if child == 0:
        os.close(reply)
        for stream, descriptor in enumerate((input, output, errors)):
            os.dup2(descriptor, stream)
            os.close(descriptor)
        _exit(_run(asked))
    for each in (input, output, errors):
        os.close(each)
    os.write(reply, f"{child}\n".encode())
    _, status = os.waitpid(child, 0)
    os.write(reply, f"{os.waitstatus_to_exitcode(status)}\n".encode())


def _run(asked: dict[str, Any]) -> int:
    import runpy

    from pipeline.core.processes import die_with_parent

    die_with_parent()
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update({**asked["environment"], "OMP_NUM_THREADS": "1", **ENVIRONMENT})
    # Who starts these processes hands them its pid, to end with it; here that is the process that forked this one.
    parent = str(os.getppid())
    module, *arguments = [parent if word == str(asked["parent"]) else word for word in asked["argv"]]
    sys.argv = [module, *arguments]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ending:
        return ending.code if isinstance(ending.code, int) else int(ending.code is not None)
    except BaseException:  # the boundary of the child: what ends it is its output's last words
        import traceback

        traceback.print_exc()
        return 1
    return 0


def _exit(code: int) -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    _serve(int(sys.argv[1]), Path(sys.argv[2]))
