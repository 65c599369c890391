"""Real processes with ranks, and a stand-in for the trainer that does what a test tells each rank to do."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from pipeline.recipe import Distribution, Training
from pipeline.training.distribution import exit_code, needs_gang, run_gang
from pipeline.training.plan import TrainingPlan
from tests.ports import held_port
from tests.processes import is_alive

WORKER = """
import json, os, signal, sys, time
from pathlib import Path

from pipeline.core.processes import die_with_parent

folder, rank = Path(sys.argv[1]).parent, int(os.environ["RANK"])


def say(name, text=""):  # whole or not at all
    staged = folder / f".{name}"
    staged.write_text(text)
    staged.rename(folder / name)


def stop_after(seconds):
    def handle(*_):
        say(f"told-{rank}")
        time.sleep(seconds)
        say(f"saved-{rank}")
        sys.exit(143)

    signal.signal(signal.SIGTERM, handle)
    say(f"here-{rank}-{attempt}", str(os.getpid()))
    time.sleep(120)


def add_up(dies_at):
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    checkpoint = folder / "checkpoint"
    step, total = json.loads(checkpoint.read_text()) if checkpoint.exists() else (0, 0)
    resumed = step
    while step < 6:
        term = torch.tensor(float(10**rank))
        dist.all_reduce(term)
        step, total = step + 1, total + int(term)
        if step == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.barrier()
        if rank == 0:
            say("checkpoint", json.dumps([step, total]))
    say(f"total-{rank}", json.dumps({"total": total, "resumed": resumed}))
    dist.destroy_process_group()


die_with_parent()
attempt = len(list(folder.glob(f"env-{rank}-*")))
say(f"env-{rank}-{attempt}", json.dumps(dict(os.environ)))
script = json.loads((folder / "script.json").read_text())[rank]
order = script[min(attempt, len(script) - 1)]
if isinstance(order, dict):
    {"stop_after": stop_after, "add_up": add_up}[order["do"]](order["value"])
    sys.exit(0)
say(f"here-{rank}-{attempt}")
while not all((folder / f"here-{peer}-{attempt}").exists() for peer in range(int(os.environ["WORLD_SIZE"]))):
    time.sleep(0.02)
if order == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(order)
"""
"""Each rank has a list of orders, one for each attempt, the last one for all that follow: a code to exit with, ..."""

GANG = """
import sys
from pathlib import Path

from tests.pipeline.training.test_gang import command, plan
from pipeline.training.distribution import run_gang

path, nodes, master = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
chosen = plan(nodes=nodes, processes=2 // nodes)
sys.exit(run_gang(path, chosen, max_restarts=1, node_rank=nodes - 1, master=master, command=command(path.parent)))
"""
"""The last node of a gang, in a process of its own."""


def plan(nodes: int = 1, processes: int = 2, grace_s: float = 20.0, **training: object) -> TrainingPlan:
    """As much of a plan as a gang looks at."""
    settings = Training.model_validate({"grace_s": grace_s, **training})
    return TrainingPlan.model_construct(iteration="it-1", nodes=nodes, processes=processes, training=settings)


def command(folder: Path) -> Sequence[str]:
    worker = folder / "worker.py"
    worker.write_text(WORKER)
    return (sys.executable, str(worker))


def script(folder: Path, *ranks: Sequence[object]) -> Path:
    (folder / "script.json").write_text(json.dumps(ranks))
    return folder / "plan.json"


@pytest.fixture
def launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    for name in ("OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "TORCHELASTIC_SIGNALS_TO_HANDLE"):
        monkeypatch.setenv(name, os.environ.get(name, ""))  # what a gang exports goes again
    # For a record that nobody reads the rendezvous looks for its caller's name in the source of every imported module.
    monkeypatch.setattr("torch.distributed.elastic.rendezvous.dynamic_rendezvous.get_method_name", lambda depth=2: "")

    def launched(*ranks: Sequence[object], max_restarts: int = 0, master: str = "", **changes: Any) -> int:
        path = script(tmp_path, *ranks)
        return run_gang(path, plan(**changes), max_restarts=max_restarts, master=master, command=command(tmp_path))

    return launched


def attempts(folder: Path, rank: int = 0) -> int:
    return len(list(folder.glob(f"env-{rank}-*")))


def wait_for(*paths: Path) -> None:
    while not all(path.exists() for path in paths):  # pytest's own limit ends a hopeless wait
        time.sleep(0.02)


def gang(folder: Path, nodes: int = 1, master: str = "") -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", GANG, str(folder / "plan.json"), str(nodes), master], cwd=Path(__file__).parents[3]
    )


@pytest.mark.parametrize(
    ("codes", "expected"),
    [
        ([1], 1),
        ([-9], 137),
        ([-15], 143),
        ([143, 143], 143),
        ([143, 1], 143),  # its peer lost it
        ([1, 143], 1),  # stopped because of the crash
        ([-9, -15], 137),
        ([1, 64], 64),
        ([143, 64], 64),
        ([64, 143], 64),
    ],
)
def test_node_exits_with_the_first_failure_or_with_never_retry(codes: list[int], expected: int) -> None:
    assert exit_code(codes) == expected


@pytest.mark.parametrize(
    ("processes", "strategy", "expected"), [(1, "ddp", False), (2, "ddp", True), (1, "zero2", True)]
)
def test_one_process_needs_ranks_only_for_deepspeed_and_fsdp(processes: int, strategy: str, expected: bool) -> None:
    distribution = Distribution.model_validate({"strategy": strategy})
    assert needs_gang(plan(processes=processes, distribution=distribution)) is expected


@pytest.mark.slow
def test_a_preemption_ends_all_at_once(launch: Callable[..., int], tmp_path: Path) -> None:
    assert launch([143], [{"do": "stop_after", "value": 0}], max_restarts=3, threads=3) == 143
    for rank in range(2):
        assert attempts(tmp_path, rank) == 1
        found = json.loads((tmp_path / f"env-{rank}-0").read_text())
        assert (found["RANK"], found["LOCAL_RANK"], found["WORLD_SIZE"]) == (str(rank), str(rank), "2")
        assert (found["MASTER_ADDR"], found["GLOO_SOCKET_IFNAME"]) == ("localhost", "lo")
        assert found["OMP_NUM_THREADS"] == "3"


@pytest.mark.slow
def test_a_crash_is_not_taken_for_the_preemption_that_it_causes(launch: Callable[..., int], tmp_path: Path) -> None:
    script_of_peer = {"do": "stop_after", "value": 0}
    assert launch([3, 0], [script_of_peer, 0], max_restarts=1) == 0
    assert attempts(tmp_path) == attempts(tmp_path, rank=1) == 2


@pytest.mark.slow
@pytest.mark.parametrize(("grace_s", "saving_s", "saved"), [(30.0, 0.5, True), (1.0, 60, False)])
def test_sigterm_reaches_all_processes_and_waits_for_the_grace(
    launch: Callable[..., int], tmp_path: Path, grace_s: float, saving_s: float, saved: bool
) -> None:
    def tell() -> None:
        wait_for(*(tmp_path / f"here-{rank}-0" for rank in range(2)))
        os.kill(os.getpid(), signal.SIGTERM)

    Thread(target=tell, daemon=True).start()
    order = [{"do": "stop_after", "value": saving_s}]
    assert launch(order, order, max_restarts=3, grace_s=grace_s) == 143
    for rank in range(2):
        assert (tmp_path / f"told-{rank}").exists()
        assert (tmp_path / f"saved-{rank}").exists() is saved
        assert attempts(tmp_path, rank) == 1


@pytest.mark.slow
def test_no_process_outlives_its_gang(tmp_path: Path) -> None:
    script(tmp_path, *[[{"do": "stop_after", "value": 0}]] * 2)
    process = gang(tmp_path)
    here = [tmp_path / f"here-{rank}-0" for rank in range(2)]
    wait_for(*here)
    process.kill()
    process.wait()
    for path in here:
        while is_alive(int(path.read_text())):
            time.sleep(0.02)


@pytest.mark.slow
def test_nodes_meet_at_the_master_and_never_restart_alone(launch: Callable[..., int], tmp_path: Path) -> None:
    scripts = [[{"do": "add_up", "value": dies_at}] for dies_at in (0, 4)]
    script(tmp_path, *scripts)
    with held_port() as held:
        master = f"127.0.0.1:{held.getsockname()[1]}"
        other = gang(tmp_path, nodes=2, master=master)
        assert launch(*scripts, max_restarts=1, nodes=2, processes=1, master=master) == 1  # lost its peer
        assert other.wait() == 137
    assert json.loads((tmp_path / "checkpoint").read_text()) == [3, 33]
    for rank in range(2):
        assert attempts(tmp_path, rank) == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("node_rank", "master", "message"), [(2, "127.0.0.1:1", "number them from 0"), (0, "", "host:port of node 0")]
)
def test_a_node_that_is_not_of_the_plan_is_refused(tmp_path: Path, node_rank: int, master: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run_gang(tmp_path / "plan.json", plan(nodes=2), max_restarts=0, node_rank=node_rank, master=master)
