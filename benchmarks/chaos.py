"""The whole loop under SIGKILLs of random processes, typed again until it went through: `python -m benchmarks.chaos`.
The outcome has to be that of an undisturbed deployment to the bit, with nothing left running."""

import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil
import pyarrow.parquet as pq

from assets.records import CHECKPOINT, PLAN, TRACES, VERDICT, VERSION
from benchmarks.parts import options
from jobs.init import write
from pipeline.core import layout
from pipeline.core.iteration import Iteration
from pipeline.core.storage import Store, digest_file, digest_json
from pipeline.registry.versions import registered
from pipeline.rollout.fold import read_state

MARK = "PREFERENCE_TUNING_CHAOS_EPISODE"
"""Names an episode in the environment of each of its processes, which hand it on."""
RECIPE = (
    *("traces.source.days=2", "traces.source.traces_per_day=400", "traces.window_days=2"),
    *("selection.min_prompts=20", "selection.min_pairs=20"),
    *("training.grpo.steps=8", "training.grpo.learning_rate=2.0e-3"),
    *("training.checkpoints.every_steps=2", "training.validation.every_steps=4"),
    *("evaluation.suites.0.items=150", "evaluation.samples_per_item=2"),
    *("evaluation.max_standard_error=0.1", "evaluation.guard_margin=0.2"),
    *("rollout.weights=[50,100]", "rollout.dwell_s=[0.5,0.5]", "rollout.look_every_s=0.5", "rollout.traffic.port=0"),
    *("rollout.requests_per_look=240", "rollout.min_canary_requests=40"),
    *("rollout.max_quality_drop=0.5", "rollout.max_p99_latency_ratio=50"),
)
JOBS = ("preference_tuning", "canary_rollout")
ADAPTER_WEIGHTS = "adapter_model.safetensors"
PAUSE_S = (1.0, 60.0)
"""Between two kills. A launch takes 10 to 20 seconds to reach its first stage: shorter ones would kill little else."""
PER_EPISODE = 8
TWO_AT_ONCE = 0.2
MOST_LAUNCHES = 30
ENDS_WITHIN_S = 120.0
"""Until what a killed process left behind has ended by itself: Dagster's code server looks every 45 s whether a
heartbeat came in the last 45."""


class EpisodeResult(NamedTuple):
    kills: int
    victims: tuple[str, ...]
    launches: int
    seconds: float
    violations: tuple[str, ...]


class ChaosDeployment:
    """One deployment in a folder of its own."""

    def __init__(self, folder: Path, name: str) -> None:
        self.folder, self.name, self.launches = folder, name, 0
        write(folder, "embedded")
        self.store = Store(folder / "data")

    def launch(self, job: str) -> subprocess.Popen[bytes]:
        self.launches += 1
        environment = {**os.environ, MARK: self.name, "PREFERENCE_TUNING_OVERRIDES": " ".join(RECIPE)}
        environment |= {"HF_HUB_OFFLINE": "1", "XDG_CONFIG_HOME": str(self.folder / "config")}
        environment.pop("DAGSTER_HOME", None)
        with (self.folder / "launches.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "dagster", "job", "launch", "-j", job],
                cwd=self.folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                start_new_session=True,
            )  # fmt: skip

    def processes(self) -> list[psutil.Process]:
        alive: list[psutil.Process] = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                if process.environ().get(MARK) == self.name and process.status() != psutil.STATUS_ZOMBIE:
                    alive.append(process)
        return alive

    def outcome(self) -> dict[str, Any]:
        """What has to be the same whatever was killed."""
        store = self.store
        latest = store.read(layout.LATEST, Iteration)
        if latest is None:
            return {}
        columns = ["observation_id", "final_reward", "reason"]
        labels = pq.read_table(store.path(latest.path(layout.LABEL_TABLE)), columns=columns).sort_by(columns[0])
        result, verdict = CHECKPOINT.find(store, latest.id), VERDICT.find(store, latest.id)
        version, plan = VERSION.find(store, latest.id), PLAN.find(store, latest.id)
        rows = registered(f"sqlite:///{store.path(layout.MLFLOW_DATABASE)}", latest.model_name, [latest.id])
        traces = TRACES.find(store, latest.id)
        return {
            "iteration": latest.id,
            "admitted": traces.admitted if traces else 0,
            "labels": digest_json(labels.to_pylist()),
            "doubled labels": len(labels) - len(labels["observation_id"].unique()),
            "method": plan.decision.method if plan else "",
            # Beside the weights an adapter names its base, and evidence its models, by where they lie.
            "adapter": digest_file(Path(result.checkpoint.adapter.uri, ADAPTER_WEIGHTS)) if result else "",
            "model": result.checkpoint.model.digest if result else "",
            "verdict": [str(verdict.verdict), *verdict.reasons] if verdict else [],
            "version": version.version if version else None,
            "versions in MLflow": [row.version for row in rows],
            "rollout": str(read_state(store, latest.model_name).phase),
        }


def undisturbed(folder: Path, jobs: Sequence[str]) -> tuple[dict[str, Any], float]:
    """What comes out where nothing is killed, and the seconds that it takes."""
    deployment, begun = ChaosDeployment(folder, folder.name), time.monotonic()
    for job in jobs:
        if code := deployment.launch(job).wait():
            raise RuntimeError(f"{job} ended with {code} where nothing was killed: see {folder / 'launches.log'}")
    return deployment.outcome(), time.monotonic() - begun


def episode(
    folder: Path, kills: int, dice: random.Random, expected: dict[str, Any], jobs: Sequence[str]
) -> EpisodeResult:
    """One deployment through so many kills, or as many as there is time for."""
    deployment, begun = ChaosDeployment(folder, folder.name), time.monotonic()
    victims: list[str] = []
    for job in jobs:
        while deployment.launches < MOST_LAUNCHES:
            command = deployment.launch(job)
            while len(victims) < kills and _waits(command, dice.uniform(*PAUSE_S)):
                for _ in range(2 if dice.random() < TWO_AT_ONCE else 1):
                    victims += _killed(deployment, dice)
            if command.wait() == 0:
                break
    return EpisodeResult(
        len(victims),
        tuple(victims),
        deployment.launches,
        time.monotonic() - begun,
        tuple(violations(deployment, expected)),
    )


def _waits(command: subprocess.Popen[bytes], seconds: float) -> bool:
    """Whether the command is still at work after so many seconds."""
    try:
        command.wait(seconds)
    except subprocess.TimeoutExpired:
        return True
    return False


def _killed(deployment: ChaosDeployment, dice: random.Random) -> Iterator[str]:
    processes = sorted(deployment.processes(), key=lambda each: each.pid)
    if processes:
        victim = dice.choice(processes)
        with suppress(psutil.Error):
            words = " ".join(victim.cmdline())
            victim.kill()
            yield words[-80:]


def violations(
    deployment: ChaosDeployment, expected: dict[str, Any], ends_within_s: float = ENDS_WITHIN_S
) -> Iterator[str]:
    """What is not as in an undisturbed deployment, a line each."""
    try:
        outcome = deployment.outcome()
    except Exception as error:  # of any library whose store a kill broke: the worst that can be found here
        yield f"what came out cannot be read: {str(error).partition(chr(10))[0]}"
        outcome = expected  # one line for it, not one for each name
    for name in sorted(expected.keys() | outcome.keys()):
        if outcome.get(name) != expected.get(name):
            yield f"{name}: {outcome.get(name)} instead of {expected.get(name)}"
    deadline = time.monotonic() + ends_within_s
    while (left := deployment.processes()) and time.monotonic() < deadline:
        time.sleep(0.5)
    for process in left:
        with suppress(psutil.Error):
            yield f"left running: {' '.join(process.cmdline())[:120]}"


def run(
    kills: int, seed: int, place: Path, per_episode: int = PER_EPISODE, jobs: Sequence[str] = JOBS
) -> dict[str, Any]:
    """Episodes until there were so many kills; the figures."""
    dice = random.Random(seed)
    expected, alone_s = undisturbed(place / f"chaos-{seed}-undisturbed", jobs)
    print(f"undisturbed: {alone_s:.0f} s, {json.dumps(expected)}", flush=True)
    results: list[EpisodeResult] = []
    while (so_far := sum(each.kills for each in results)) < kills:
        folder = place / f"chaos-{seed}-{len(results)}"
        results.append(result := episode(folder, min(per_episode, kills - so_far), dice, expected, jobs))
        print(f"{folder.name}: {result.kills} kills, {result.launches} launches, {result.seconds:.0f} s", flush=True)
        for line in (*result.victims, *result.violations):
            print(f"    {line}", flush=True)
        if result.kills == 0:
            break  # it was faster than the first moment of a kill
    recovery = [(each.seconds - alone_s) / each.kills for each in results if each.kills]
    return {
        "kills": sum(each.kills for each in results),
        "episodes": len(results),
        "violations": sum(len(each.violations) for each in results),
        "seconds_per_kill": round(statistics.median(recovery), 1) if recovery else None,
        "undisturbed_s": round(alone_s, 1),
        "seed": seed,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = options(__doc__, "one kill, and no rollout")
    parser.add_argument("--kills", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--per-episode", type=int, default=PER_EPISODE)
    asked = parser.parse_args()
    jobs = JOBS[:1] if asked.small else JOBS
    asked.kills = 1 if asked.small else asked.kills
    with tempfile.TemporaryDirectory(prefix="chaos-") as folder:
        figures = run(asked.kills, asked.seed, Path(folder), asked.per_episode, jobs)
    print(json.dumps(figures))
    return 1 if figures["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
