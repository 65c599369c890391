"""Work that is killed before each of its writes in turn, on a copy of one root each time, and then done again.

    python -m tests.killing MODULE ROOT SCRATCH EVERY

MODULE has `work(root)`, and `state(root)`: what has to be equal however the work went, as JSON; also `WRITES`, if it
has more of them than Python sees: classes and the names of methods, before and after which the work dies too. Prints
the kills and, for those after which the state differs from that of undisturbed work, the number of the write and both
states. A process of its own, so that it can fork: its imports are paid once, and it holds no thread that a fork would
lose.
"""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

WRITES = frozenset({"os.rename", "os.remove", "os.link", "os.truncate", "os.mkdir", "os.rmdir", "sqlite3.connect"})
"""Python's own words; a file that is opened to be written is one more."""


def differing(module: str, root: Path, scratch: Path, every: int) -> tuple[int, list[Any]]:
    """How many kills there were, and which of them did not heal. `every`: every so many-th write."""
    command = [sys.executable, "-m", "tests.killing", module, str(root), str(scratch), str(every)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kills, wrong = json.loads(done.stdout.splitlines()[-1])
    return kills, wrong


def main(name: str, root: Path, scratch: Path, every: int) -> None:
    module = importlib.import_module(name)
    whole = _forked(module, _copy(root, scratch, "whole"), 0, scratch / "imported")
    for each in (scratch / "imported").read_text().splitlines():
        with suppress(ImportError):  # some names are of modules inside others
            importlib.import_module(each)  # what the work imports on its way, once for all
    kills, wrong, at = 0, list[Any](), 1
    while True:
        copy = _copy(root, scratch, f"killed-{at}")
        if _forked(module, copy, at) is not None:  # it has fewer writes
            break
        kills += 1
        again = _forked(module, copy, 0)
        if again != whole:
            wrong.append([at, again, whole])
        shutil.rmtree(copy)
        at += every
    print(json.dumps([kills, wrong]))


def _copy(root: Path, scratch: Path, name: str) -> Path:
    return Path(shutil.copytree(root, scratch / name, symlinks=True))


def _forked(module: ModuleType, root: Path, dies_at: int, imported: Path | None = None) -> Any:
    """The state after the work in a process of its own; None where it was killed. `dies_at`: 0 for never. `imported`:
    where to leave the names of all modules that are imported by then."""
    reading, writing = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.close(reading)
            with _dying_at(dies_at, root, getattr(module, "WRITES", ())):
                module.work(root)
            with os.fdopen(writing, "w") as stream:
                json.dump(module.state(root), stream)
            if imported is not None:
                imported.write_text("\n".join(sys.modules))
            os._exit(0)
        except BaseException:  # a child that raises must not go on as its parent
            traceback.print_exc()
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading) as stream:
        text = stream.read()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if code == -signal.SIGKILL:
        return None
    assert code == 0, f"the work ended with {code}"
    return json.loads(text)


@contextmanager
def _dying_at(left: int, root: Path, writes: Iterable[tuple[Any, str]]) -> Generator[None]:
    """What is within is killed at so many writes, and what follows is not: to read the state writes too. 0: never."""
    inside = str(root)

    def one() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        opened = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR)
        if (opened and str(arguments[0]).startswith(inside)) or event in WRITES:
            one()

    def frail(real: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            one()
            result = real(*args, **kwargs)
            one()
            return result

        return call

    sys.addaudithook(hook)
    for owner, name in writes:
        setattr(owner, name, frail(getattr(owner, name)))
    yield
    left = 0


if __name__ == "__main__":
    os.fsync = lambda fd: None  # no plug is pulled
    main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]))
