"""Nights of the loop in a simulated calendar, for benchmarks/nights.py: Dagster's own iterations of scheduler, sensors,
queue and monitoring over the project's definitions, storage and run coordinator. Records, gate, ledger, registry,
rollout, retention and erasure are real. A run is executed in this process, a training copies its base, answers and
users are drawn, and plots are empty."""

import json
import logging
import os
import random
import shlex
import shutil
import tempfile
import time
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import dagster as dg
import yaml
from dagster._core.remote_origin import InProcessCodeLocationOrigin
from dagster._core.types.loadable_target_origin import LoadableTargetOrigin
from dagster._core.workspace.context import WorkspaceProcessContext
from dagster._core.workspace.load_target import InProcessWorkspaceLoadTarget
from dagster._daemon.monitoring import execute_concurrency_slots_iteration, execute_run_monitoring_iteration
from dagster._daemon.run_coordinator.queued_run_coordinator_daemon import QueuedRunCoordinatorDaemon
from dagster._daemon.sensor import execute_sensor_iteration
from dagster._daemon.types import DaemonHeartbeat
from dagster._scheduler.scheduler import launch_scheduled_runs

from assets import evaluation, registry, rollout, training
from assets.resources import deployment
from assets.traffic import LiveTraffic
from benchmarks.rollout_machine import MEMORY, Production
from benchmarks.rollout_world import World
from jobs import preference_tuning
from jobs.coordinator import TAKES_RUNS
from jobs.governance import forget_user
from jobs.sensors import collecting
from pipeline.core import audit, layout
from pipeline.core.storage import CheckpointRef, ModelRef, Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import mistaken_solution, problems
from pipeline.rollout.fold import read_state
from pipeline.rollout.probe import Fingerprints
from pipeline.rollout.router import Split
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import TrainingResult
from pipeline.views import Plot
from tests.own import write_suite
from tests.pipeline.rollout.local_router import LocalRouter
from tests.simulated import SKILLS, CalendarClock, Session, skills

ROOT = Path(__file__).parents[1]
SETTINGS = (
    "base_model.name=shop", "traces.window_days=3", "traces.governed_days=20", "rewards.rules.min_chars=8",
    "selection.min_prompts=20", "selection.min_pairs=20", "selection.max_principal_share=0.1",
    "training.grpo.generation=transformers", "evaluation.expected_gain=0.07", "evaluation.samples_per_item=2",
    "evaluation.guard_margin=0.05", "rollout.look_every_s=28800", "rollout.dwell_s=[86400,86400,86400]",
    "rollout.lease_s=1e6", "rollout.min_canary_requests=400", "rollout.max_quality_drop=0.08", "compute.workers=1",
    "retention.iterations=5", "compute.budget_usd=null",
)  # fmt: skip
HOURS = (3, 11, 19)  # when the daemon iterates, a minute past each
SENSORS = ("new_labels", "feedback_drift", "champion_changed", "rollout_due", "notices_due")
GAIN, OVERFIT, BETTER = 0.1, -0.25, 0.3
"""What a training adds on the suite, what one that overfits does in production, and how many gain."""


class Calendar:
    """A shop below `folder`, so many nights from the next midnight on, and what happens in some of them."""

    def __init__(self, folder: Path, nights: int) -> None:
        self.start = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0) + timedelta(days=1)
        self.clock, self.rng = CalendarClock(self.start), random.Random(3)
        self.folder, self.traces, self.overfit = folder, folder / "traces", False
        self.store, self.trained, self.live = Store(folder / "data"), list[str](), dict[str, Production]()
        self.queue = QueuedRunCoordinatorDaemon(interval_seconds=5)
        at = {"source away": 0.3, "erasure": 0.6, "MLflow away": 0.75}
        self.plan = {max(1, int(nights * share)): what for what, share in at.items()}
        self.days = [self.start + timedelta(days=night) for night in range(nights)]
        shutil.copytree(MODEL_DIR, folder / "model")
        (folder / "model" / SKILLS).write_text("[0.5, 0.7]", encoding="utf-8")
        self.answers = {each.prompt: each.solution for each in problems(9, "heldout", 320)}
        write_suite(folder / "suite.jsonl", 320)

    def serve(self, day: datetime, drift: float) -> None:
        """A day's traffic, of which less is right the more it has drifted."""
        champion, asked = read_state(self.store, "shop").past.champion, problems(day.toordinal(), "train", 90)
        right, rng = skills(champion.model.uri if champion else self.folder / "model")[1] - drift, self.rng
        (self.traces / "observations_v2").mkdir(parents=True, exist_ok=True)
        with (self.traces / "observations_v2" / f"{day:%Y-%m-%d}.jsonl").open("w", encoding="utf-8") as file:
            for number in range(360):
                each, moment = asked[number // 4], day + timedelta(hours=8, seconds=100 * number)
                answer = each.solution if rng.random() < right else mistaken_solution(each)
                row = {
                    "id": f"o-{day:%j}-{number}", "trace_id": f"t-{day:%j}-{number}", "type": "GENERATION",
                    "start_time": f"{moment:%Y-%m-%d %H:%M:%S}.000000", "user_id": f"user-{rng.randrange(60)}",
                    "provided_model_name": "shop", "level": "DEFAULT", "latency": 0.5,
                    "metadata": {"expected_answer": each.answer, "user_consent": str(rng.random() < 0.9).lower()},
                    "input": json.dumps([{"role": "user", "content": each.prompt}]),
                    "output": json.dumps({"role": "assistant", "content": answer}),
                }  # fmt: skip
                file.write(json.dumps(row) + "\n")

    def train(self, store: Store, plan: TrainingPlan, *_: Any) -> TrainingResult | None:
        """In place of the training worker: the base again with other skills, and a checkpoint."""
        if plan.decision.method == "none":
            return None
        folder, (suite, live) = store.path(layout.iteration(plan.iteration, layout.TRAINING)), skills(plan.base.uri)
        gain = GAIN if self.overfit or self.rng.random() < BETTER else self.rng.uniform(-1e-6, 0)
        for name in ("model", "adapter", "checkpoints/step-000010"):
            shutil.copytree(plan.base.uri, folder / name, dirs_exist_ok=True)
            learnt = [suite + gain, live + (OVERFIT if self.overfit else gain / 2)]
            (folder / name / SKILLS).write_text(json.dumps(learnt), encoding="utf-8")
        model, adapter = model_ref(folder / "model"), ModelRef(uri=str(folder / "adapter"), digest=plan.digest())
        result = TrainingResult(
            iteration=plan.iteration, plan_digest=plan.digest(), seconds=60.0, attempts=1, resumed_from=(),
            checkpoint=CheckpointRef(adapter=adapter, model=model, step=10), metrics=({"step": 10.0, "accuracy": 0.5},),
        )  # fmt: skip
        store.write(layout.iteration(plan.iteration, layout.RESULT), result)
        self.trained.append(plan.iteration)
        return result

    def open(self, arm: str, model: ModelRef) -> AbstractContextManager[Session]:
        return nullcontext(Session(self.answers, model))

    def look(self, split: Split, request: Any) -> Any:
        """What 1,000 users of both arms did since the last look."""
        assert split.canary is not None, "one is in the traffic"
        loss = skills(split.champion.uri)[1] - skills(split.canary.uri)[1]
        own = Production(World(1_000, 0.005, requests=20_000), loss, len(self.live))
        return self.live.setdefault(split.rollout, own).look(split, request)

    def turn(self, context: WorkspaceProcessContext) -> None:
        """Each part of the daemon once, and the queue again for what they asked for."""
        log = logging.getLogger("calendar")
        context.instance.add_daemon_heartbeat(DaemonHeartbeat(time.time(), TAKES_RUNS, "calendar", []))
        for part in (
            execute_run_monitoring_iteration(context, log),
            execute_concurrency_slots_iteration(context, log),
            launch_scheduled_runs(context, log, datetime.now(UTC), {}),
            self.queue.run_iteration(context),
            execute_sensor_iteration(context, log, None, None),
            self.queue.run_iteration(context),
        ):
            list(part)
        for path in self.store.root.rglob("*"):  # the calendar's time, for what is kept by age
            if path.lstat().st_mtime < self.start.timestamp():
                os.utime(path, (time.time(), time.time()), follow_symlinks=False)

    def night(self, number: int, context: WorkspaceProcessContext) -> dict[str, Any]:
        """What became of it. Its schedule trains exactly where what was there before it fired lets it."""
        what, day, before = self.plan.get(number, ""), self.days[number], len(self.trained)
        self.overfit = number >= 0.4 * len(self.days) and not read_state(self.store, "shop").past.quarantined
        source = self.traces.rename(self.folder / "away") if what == "source away" else self.traces
        os.environ["MLFLOW_TRACKING_URI"] = "http://127.0.0.1:9" if what == "MLflow away" else ""
        self.clock.to(day + timedelta(hours=HOURS[0], minutes=1))
        since = deployment().champion().since
        is_free = not (read_state(self.store, "shop").active or what.endswith("away"))
        has_new = since is None or since < day - timedelta(hours=8)
        collects = bool(number and collecting(deployment()))
        self.turn(context)
        trained = len(self.trained) > before
        assert trained == (is_free and has_new and not collects), (number, what, is_free, has_new, collects)
        for hour in HOURS[1:]:
            self.clock.to(day + timedelta(hours=hour, minutes=1))
            self.turn(context)
        os.environ["MLFLOW_TRACKING_URI"], self.traces = "", source.rename(self.folder / "traces")
        if what == "erasure":
            assert forget_user(deployment(), "user-7", lambda _: None).rows, "the user had rows"
        self.serve(day, 0.002 * number)
        past, folders = read_state(self.store, "shop").past, (self.store.root, self.folder / "home")
        sizes = [path.lstat().st_size for each in folders for path in each.rglob("*") if path.is_file()]
        found = {"trained": trained, "collects": collects, "files": len(sizes), "mb": round(sum(sizes) / 1e6, 1)}
        print(f"{number:>3} {what:<12} {past.promotions} promoted, {len(past.quarantined)} back {found}", flush=True)
        return found

    @contextmanager
    def opened(self) -> Generator[WorkspaceProcessContext]:
        """The project's definitions and instance in `folder`/home, with what stands for models, users and plots."""
        settings, home = yaml.safe_load((ROOT / "dagster.yaml").read_text(encoding="utf-8")), self.folder / "home"
        settings["run_launcher"] |= {"module": "tests.simulated", "class": "InProcessLauncher"}
        home.mkdir()
        os.chdir(home)
        Path("dagster.yaml").write_text(yaml.safe_dump(settings), encoding="utf-8")
        suite, base = self.folder / "suite.jsonl", self.folder / "model"
        named = [f"data_root={self.store.root}", f"base_model.uri={base}", f"evaluation.suites.0.path={suite}"]
        named += [f"evaluation.suites.0.sha256={sha256(suite.read_bytes()).hexdigest()}"]
        named += [f"traces.source={{kind: langfuse_export, uri: {self.traces}}}", *SETTINGS]
        os.environ["PREFERENCE_TUNING_RECIPE"] = str(ROOT / "jobs" / "recipes" / "own.yaml")
        os.environ["PREFERENCE_TUNING_OVERRIDES"] = shlex.join(named)
        code = LoadableTargetOrigin(module_name="jobs.definitions", working_directory=str(ROOT))
        target = InProcessWorkspaceLoadTarget(InProcessCodeLocationOrigin(code))
        with (
            dg.DagsterInstance.from_config(str(home)) as instance,
            patch.object(dg.DagsterInstance, "from_ref", lambda _: instance),  # each sensor's tick opens one else
            patch.object(dg.DagsterInstance, "dispose"),
            patch.object(preference_tuning, "executor", dg.in_process_executor),
            patch.object(training, "train", self.train),
            patch.object(evaluation, "inference", lambda *_: nullcontext(self)),
            patch.object(registry, "fingerprints", lambda *_: Fingerprints()),
            patch.object(rollout, "traffic_split", lambda _: LocalRouter(self.store, "shop")),
            patch.object(rollout, "is_routed", lambda _: True),
            patch.object(rollout, "live_traffic", lambda *_: nullcontext(LiveTraffic(self, time.sleep))),
            patch.object(Plot, "_file", lambda *_: b""),
            WorkspaceProcessContext(instance, target) as context,
        ):
            [repository] = context.create_request_context().code_locations[0].get_repositories().values()
            for name in SENSORS:
                instance.start_sensor(repository.get_sensor(name))
            for name in ("nightly", "weekly"):
                instance.start_schedule(repository.get_schedule(name))
            yield context


def calendar(nights: int) -> dict[str, float]:
    """Counts of so many nights, and what the last third of them added a night to the disk."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        shop = Calendar(Path(folder), nights)
        shop.serve(shop.start - timedelta(days=1), 0.0)
        with shop.opened() as context:
            seen = [shop.night(number, context) for number in range(nights)]
            left = context.instance.get_runs_count(dg.RunsFilter(statuses=preference_tuning.UNFINISHED))
        past, log, last = read_state(shop.store, "shop").past, audit.verify(shop.store), nights // 3
    assert not left and not log.flaw, f"{left} runs are unfinished; the audit log: {log.flaw}"
    gone = seen[-1 - last]
    return {
        **{"calendar_nights": nights, "calendar_trained": len(shop.trained), "calendar_promoted": past.promotions},
        **{"calendar_rolled_back": len(past.quarantined), "calendar_collecting": sum(e["collects"] for e in seen)},
        "files_a_night": round((seen[-1]["files"] - gone["files"]) / last, 1),
        "mb_a_night": round((seen[-1]["mb"] - gone["mb"]) / last, 2),
    }
