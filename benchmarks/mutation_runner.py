"""Runs a module's tests again and again, each time in a process forked from one that has imported all but the module.
The first run notes what
the tests import."""

import ast
import contextlib
import importlib
import json
import os
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import hypothesis
import pytest

PACKAGES = ("pipeline", "evals", "k8s", "assets", "jobs", "benchmarks", "tests")
SETTINGS = {
    "PYTHONDONTWRITEBYTECODE": "1",  # two mutants of one size within a second have the same bytecode to the cache
    "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1",  # threads do not outlive a fork
    "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1",
    "MLFLOW_DISABLE_TELEMETRY": "true", "DAGSTER_DISABLE_TELEMETRY": "yes",
}  # fmt: skip
QUICK = ("-m", "not variant", "-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--hypothesis-profile=mutants")
EXAMPLES = hypothesis.settings(
    max_examples=50,
    derandomize=True,
    deadline=None,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
    # The first example that fails is enough: to search for the smallest takes longer than all tests.
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
GIVES_WAY_S = 5.0
"""For pytest to end what its fixtures started, once a run has taken too long."""


class Trial(NamedTuple):
    """How a module's tests ended. `by`: the first test that failed; empty where none did, or none could begin."""

    status: str
    """passed, failed, or timed out."""
    took_s: float
    by: str = ""


class Runner:
    """A process that forks. `tree`: a copy that nobody else uses; `module`: relative to it; `tests`: likewise."""

    def __init__(self, tree: Path, module: str, tests: Sequence[str]) -> None:
        self._tree, self._module, self._tests = tree, module, tests
        self._asks, self._answers = os.pipe(), os.pipe()

    def __enter__(self) -> "Runner":
        self._pid = os.fork()
        if self._pid == 0:
            with _last_words():
                self._serve()
        os.close(self._asks[0])
        os.close(self._answers[1])
        self._heard = os.fdopen(self._answers[0], encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._asks[1])
        os.waitpid(self._pid, 0)
        self._heard.close()

    def run(self, within_s: float | None = None) -> Trial:
        """Run the tests on the tree as it is now. The first call notes their imports. `within_s`: None for no limit."""
        os.write(self._asks[1], f"{json.dumps(within_s)}\n".encode())
        line = self._heard.readline()
        if not line:
            raise RuntimeError("The process that runs the tests ended by itself; its words are above.")
        return Trial(*json.loads(line))

    def _serve(self) -> None:
        os.close(self._asks[1])
        os.close(self._answers[0])
        checkout = Path(__file__).parent.parent
        os.chdir(self._tree)
        os.environ |= SETTINGS | {"PYTHONPATH": str(self._tree)}
        sys.path[:] = [str(self._tree), *(entry for entry in sys.path if entry and Path(entry).resolve() != checkout)]
        for name in [name for name in sys.modules if _is_own(name)]:
            del sys.modules[name]
        notes = self._tree.parent / "notes.json"
        notes.unlink(missing_ok=True)
        for line in os.fdopen(self._asks[0], encoding="utf-8"):
            first = not notes.is_file()
            trial = self._fork(json.loads(line), notes if first else None)
            if first and notes.is_file():
                _import(json.loads(notes.read_bytes()), dependents(self._tree, self._module))
                assert module_name(self._module) not in sys.modules, "each run imports the module as it then is"
            os.write(self._answers[1], f"{json.dumps(trial)}\n".encode())

    def _fork(self, within_s: float | None, notes: Path | None) -> Trial:
        failed, began = self._tree.parent / "failed", time.monotonic()
        failed.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            with _last_words():
                os.setsid()
                self._test(failed, notes)
        watched = os.pidfd_open(pid)
        ended = bool(select.select([watched], [], [], within_s)[0])
        if not ended:
            os.kill(pid, signal.SIGINT)
            select.select([watched], [], [], GIVES_WAY_S)
        os.close(watched)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        status = ("passed" if code == 0 else "failed") if ended else "timed out"
        why = failed.read_text(encoding="utf-8") if failed.is_file() else ""
        return Trial(status, round(time.monotonic() - began, 2), why)

    def _test(self, failed: Path, notes: Path | None) -> None:
        sys.dont_write_bytecode = notes is None
        output = os.open(self._tree.parent / "output.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for descriptor in (1, 2):
            os.dup2(output, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        hypothesis.settings.register_profile("mutants", EXAMPLES)
        code = pytest.main([*QUICK, f"--basetemp={self._tree.parent / 'tmp'}", *self._tests], [_Watch(failed)])
        if notes is not None:
            notes.write_text(json.dumps(list(sys.modules)), encoding="utf-8")
        os._exit(code)


class _Watch:
    """A plugin that writes down which test failed first."""

    def __init__(self, failed: Path) -> None:
        self._failed = failed

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self._failed.is_file():
            self._failed.write_text(report.nodeid, encoding="utf-8")


def dependents(tree: Path, module: str) -> set[str]:
    """The module, and all of the tree that imports it, also by way of others. Names of modules, with dots."""
    imports: defaultdict[str, set[str]] = defaultdict(set)
    for package in PACKAGES:
        for file in (tree / package).rglob("*.py"):
            name = module_name(file.relative_to(tree).as_posix())
            if "." in name:  # whoever imports a module imports the packages that it lies in
                imports[name.rpartition(".")[0]].add(name)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Import):
                    for each in node.names:
                        imports[each.name].add(name)
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    for each in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                        imports[each].add(name)
    reached, todo = set[str](), [module_name(module)]
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += imports[name]
    return reached


def module_name(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _is_own(name: str) -> bool:
    return name.partition(".")[0] in PACKAGES


def _import(names: Sequence[str], without: Collection[str]) -> None:
    """What the tests imported, but for the tests themselves and what depends on the module."""
    for name in names:
        if name.partition(".")[0] not in ("tests", "conftest") and name not in without:
            with contextlib.suppress(ImportError):  # some put modules there that nobody can import by name
                importlib.import_module(name)


@contextlib.contextmanager
def _last_words() -> Iterator[None]:
    """A forked process never comes back into its parent's code."""
    try:
        yield
    except BaseException:  # the end of a process: nobody is left to raise it to
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        os._exit(70)
    os._exit(0)
