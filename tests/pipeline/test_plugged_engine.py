"""An engine of an installed package: what it is held to, and that a stage runs on it."""

from __future__ import annotations

from pathlib import Path

import pytest

from pipeline.engine import open_engine
from pipeline.recipe import Compute
from pipeline.recipe.plugin import PluginEngine
from pipeline.section import settings
from pipeline.storage import Store
from tests.pipeline.traces.conftest import LangfuseExportSource, govern, observation, write

from .plugin_packages import Install, install

__all__ = ["install"]
ENGINE = """
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

class Threads:
    def __init__(self, pool):
        self.pool = pool
    def map(self, function, tasks, log):
        yield from self.pool.map(function, tasks)

@contextmanager
def make(workers, mark=""):
    with ThreadPoolExecutor(workers) as pool:
        yield Threads(pool)
    if mark:
        Path(mark).touch()
"""


def compute(**changes: object) -> Compute:
    return Compute(engine=PluginEngine.model_validate({"name": "threads", **changes}), workers=2)


@pytest.mark.slow
def test_a_stage_runs_on_a_plug_ins_engine(install: Install, tmp_path: Path) -> None:
    install("engines", "threads", ENGINE)
    write(tmp_path / "export", "observations_v2/2026-01-05.jsonl", [observation(n) for n in range(3)])
    source, mark = LangfuseExportSource(uri=str(tmp_path / "export")), tmp_path / "ended"
    engine = compute(options={"mark": str(mark)})
    governed = govern(Store(tmp_path / "data"), source, source.uri, compute=engine)
    usual = govern(Store(tmp_path / "other"), source, source.uri)
    assert governed.admitted == 3 and governed.iteration.dataset.digest == usual.iteration.dataset.digest
    assert mark.exists(), "its block is left"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "@contextmanager",
            "",
            r"acme 1\.0 does not keep the interface of .*engines: it returned generator, no context",
        ),
        ("def map", "def maps", r"Threads has no map"),
        ("tasks)", "tasks[1:])", r"map\(\) gave 2 results for 3 tasks\. Install a version of acme"),
        ("tasks)", "[*tasks, 7])", r"map\(\) gave more results for 3 tasks"),
        ('workers, mark=""', '*, mark=""', r"acme 1\.0 does not take these options: too many"),
    ],
)
def test_an_engine_that_is_none_is_refused(install: Install, old: str, new: str, message: str) -> None:
    assert old in ENGINE
    install("engines", "threads", ENGINE.replace(old, new, 1))
    with pytest.raises(ValueError, match=message), open_engine(compute()) as engine:
        list(engine.map(str, [1, 2, 3], print))


def test_what_a_task_raises_is_raised_through_it(install: Install) -> None:
    install("engines", "threads", ENGINE)
    with pytest.raises(ZeroDivisionError), open_engine(compute()) as engine:
        list(engine.map((1).__truediv__, [1, 0], print))


def test_an_engine_that_is_not_there_is_told() -> None:
    with pytest.raises(ValueError, match=r"compute\.engine\.name: no installed package has an entry point 'threads'"):
        open_engine(compute()).__enter__()


def test_a_recipe_without_one_says_nothing_of_it() -> None:
    assert "engine" not in settings(Compute())
