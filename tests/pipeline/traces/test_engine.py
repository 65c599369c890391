"""Both engines, for real: spawned processes, and a Ray cluster of two nodes on 127.0.0.1."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipeline.core.storage import Store
from pipeline.recipe import Compute
from pipeline.traces.engine import RUNS, open_engine
from pipeline.traces.lake import local_lake
from pipeline.traces.materialize import read
from pipeline.traces.records import Reason

from ..conftest import RAY
from .conftest import Run, observation, score, write


def square(task: int) -> int:
    time.sleep(0.05 * (task % 3))  # they do not end in the order in which they start
    return task * task


def refuse_three(task: int) -> int:
    if task == 3:
        raise ValueError("Three is one too many. Take it out.")
    return task


def killed_once(marker: str) -> str:
    """Kills its own worker the first time that it runs, as the kernel does when memory is short."""
    if not Path(marker).exists():
        Path(marker).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return marker


def killed_always(task: int) -> int:
    if task == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def note_and_wait(folder: str) -> None:
    Path(folder, str(os.getpid())).touch()
    time.sleep(120)


@pytest.mark.slow
def test_results_come_in_order_and_what_a_task_raises_too(compute: Compute) -> None:
    with open_engine(compute, os.environ.get("RAY_ADDRESS", "")) as engine:
        assert list(engine.map(square, range(9), print)) == [n * n for n in range(9)]
        assert list(engine.map(square, [], print)) == []
        with pytest.raises(ValueError, match=r"^Three is one too many\. Take it out\.$"):
            list(engine.map(refuse_three, range(5), print))
        assert list(engine.map(square, [2, 3], print)) == [4, 9]


@pytest.mark.slow
def test_the_task_of_a_killed_worker_is_run_again(compute: Compute, tmp_path: Path) -> None:
    markers, value = [str(tmp_path / str(n)) for n in range(4)], list[str]()
    for marker in markers[::2]:
        Path(marker).touch()
    with open_engine(compute, os.environ.get("RAY_ADDRESS", "")) as engine:
        assert list(engine.map(killed_once, markers, value.append)) == markers
        assert len(value) == 2 and all("was lost" in line for line in value)
        with pytest.raises(ValueError, match=rf"task 2 of 4 was lost {RUNS} times .* lower compute\.workers"):
            list(engine.map(killed_always, range(4), print))


@pytest.mark.slow
def test_workers_do_not_outlive_a_killed_parent(tmp_path: Path) -> None:
    code = (
        "from pipeline.recipe import Compute\nfrom pipeline.traces.engine import open_engine\n"
        f"from {note_and_wait.__module__} import note_and_wait\n"
        "with open_engine(Compute(workers=2)) as engine:\n"
        f"    list(engine.map(note_and_wait, [{str(tmp_path)!r}] * 2, print))"
    )
    path = os.pathsep.join(sys.path)
    parent = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path})
    try:
        while len(pids := [int(f.name) for f in tmp_path.iterdir()]) < 2:
            assert parent.poll() is None
            time.sleep(0.05)
    finally:
        parent.kill()
        parent.wait()
    deadline = time.monotonic() + 30
    while any(map(_alive, pids)):
        assert time.monotonic() < deadline, f"{pids} are still there"
        time.sleep(0.05)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("address", ["", "ray-head", "127.0.0.1:1"])
def test_ray_without_a_cluster_says_what_to_set(address: str) -> None:
    pytest.importorskip("ray")
    with pytest.raises(ValueError, match=r"RAY_ADDRESS='.*' .* or set compute.data=local"), open_engine(RAY, address):
        pass


def node_of(folder: str) -> str:
    """Ends once two of it run at the same time: a node has one CPU."""
    import ray

    Path(folder, str(os.getpid())).touch()
    deadline = time.monotonic() + 120
    while len(list(Path(folder).iterdir())) < 2:
        assert time.monotonic() < deadline, "it ran alone"
        time.sleep(0.05)
    return ray.get_runtime_context().get_node_id()


@pytest.mark.variant
@pytest.mark.slow
def test_ray_spreads_tasks_over_its_nodes(cluster: None, tmp_path: Path) -> None:
    with open_engine(RAY, os.environ["RAY_ADDRESS"]) as engine:
        assert len(set(engine.map(node_of, [str(tmp_path)] * 2, print))) == 2


@pytest.mark.slow
@pytest.mark.parametrize("compute", ["local", "ray"], indirect=True)
def test_stage_gives_the_same_on_every_engine(compute: Compute, run: Run, store: Store, export: Path) -> None:
    for day in range(5, 9):
        rows = [
            observation(n, start_time=f"2026-01-{5 + n % 4:02d} 10:00:00.000000", metadata={"user_consent": n % 7 > 0})
            for n in range(40)
        ]
        copies = [{**row, "id": f"{day}{row['id']}", "trace_id": f"{day}{row['trace_id']}"} for row in rows[:3]]
        write(export, f"observations_v2/2026-01-{day:02d}.jsonl.gz", [*rows[day::3], *copies, "{"])
    write(export, "scores/a.jsonl", [score(n, n, 1.0) for n in range(40)])
    one = run()
    rows = read(store, local_lake(store), one.iteration.dataset)
    assert {Reason.DUPLICATE, Reason.SUPERSEDED, Reason.CONSENT, Reason.MALFORMED} == set(one.rejected)
    store.root.rename(store.root.with_name("one"))
    many = run(compute=compute)
    assert many.iteration.id == one.iteration.id
    assert many.days == one.days
    assert read(store, local_lake(store), many.iteration.dataset).equals(rows)
