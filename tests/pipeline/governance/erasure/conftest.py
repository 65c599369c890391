"""A small deployment with people in it: a real lake, real labels, preference data, plans and MLflow versions.

Three days, three iterations: `first` learned from days 5 and 6, `second` (on the champion that `first` made) from day
7, `third` from day 5 alone. Weights are stand-ins: nobody reads them here.
"""

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from pipeline.core.iteration import Iteration, identify
from pipeline.core.storage import CheckpointRef, DatasetRef, ModelRef, Store, digest_dir, digest_json
from pipeline.recipe import Checkpoints, Compute, Rollout, Selection, Training
from pipeline.recipe.methods import DPO
from pipeline.registry.runs import MlflowAddresses
from pipeline.registry.versions import RunContents, record
from pipeline.rewards.label import label_traces
from pipeline.rollout.policy import policy_of
from pipeline.rollout.propose import RolloutCandidate, propose
from pipeline.rollout.record import JudgedCandidate, ModelVersion
from pipeline.selection.preferences import build
from pipeline.selection.trainable import HeldApart
from pipeline.traces.lake import LakeConfig, local_lake, open_lake
from pipeline.traces.lake.files import write_file
from pipeline.traces.pii import pseudonym
from pipeline.traces.records import DayReport, FileReport, GovernedTraces, Reason, Window, day_digest
from pipeline.traces.rows import SCHEMA
from pipeline.traces.scope import consented
from pipeline.training.checkpoints.mirror import CLAIM, places_of
from pipeline.training.plan import plan_training
from pipeline.training.result import Goodput, Health, TrainingResult
from tests.contexts import KEYS, context_of

NAME = "demo"
BASE = ModelRef(uri="base", digest="base")
ALONE = Compute(workers=1)
TRAINING = Training(dpo=DPO(steps=2))
NOW = datetime(2026, 2, 1, 12, tzinfo=UTC)
DAYS = ("2026-01-05", "2026-01-06", "2026-01-07")
ANN, BOB, CYD = "user-ann@example.com", "user-bob-0002", "user-cyd-0003"
"""Ann's id is an e-mail address: the table has a pseudonym of it."""


def row(user: str, day: str, number: int) -> dict[str, Any]:
    """One governed row. Everybody is asked the same, gets it right and wrong, and says a word of their own."""
    right = number % 2 == 0
    return {
        "trace_id": f"trace-{short(user)}-{day}-{number}",
        "observation_id": f"o-{short(user)}-{day}-{number}",
        "timestamp": datetime.combine(date.fromisoformat(day), datetime.min.time(), UTC) + timedelta(hours=number),
        "day": date.fromisoformat(day),
        "model": "m",
        "consent": True,
        "user_id": user,
        "session_id": f"{user}-session",
        "messages": [
            {
                "role": "user",
                "content": f"What is {number // 2} + 1? Says {secret(user)} on day {day[-1]}.",
                "tool_calls": None,
            }
        ],
        "completion": f"#### {number // 2 + (1 if right else 5)}",
        "feedback": [{"name": "thumb", "value": float(right), "source": "API"}],
        "feedback_count": 1,
        "reference": f"{number // 2 + 1}",
        "metadata": "{}",
        "source_file": f"{'a' if number < 4 else 'b'}.jsonl.gz",
    }


def short(user: str) -> str:
    return "ann" if user.startswith("pseudonym") else user[5:8]


def secret(user: str) -> str:
    """What only this user ever said."""
    return f"shibboleth {short(user)}"


@dataclass
class Place:
    """The deployment and its hand-made stages."""

    root: Path

    @property
    def store(self) -> Store:
        return Store(self.root, KEYS)

    @property
    def lake(self) -> LakeConfig:
        return local_lake(self.store)

    @property
    def tracking_uri(self) -> str:
        return f"sqlite:///{self.root}/mlflow/mlflow.db"

    def govern(self, day: str, rows: Sequence[dict[str, Any]]) -> None:
        """The day as the stage leaves it: table, ledger, report."""
        kept = Counter(r["source_file"] for r in rows)
        files = tuple(
            FileReport(name=n, sha256=n * 8, bytes=9, seen=kept[n] + 1, admitted=kept[n], rejected={Reason.CONSENT: 1})
            for n in ("a.jsonl.gz", "b.jsonl.gz")
        )
        digest = day_digest("rules", {f.name: f.sha256 for f in files}, ())
        report = DayReport(day=day, rules="rules", digest=digest, files=files)
        batch = pa.RecordBatch.from_pylist(list(rows), schema=SCHEMA)
        with open_lake(self.lake) as lake:
            lake.replace_day(day, write_file(self.lake, day, "part", [batch]), report.digest)
        ids = [rows[0]["trace_id"], "trace-of-nobody"]
        lines = [
            {"trace_id": id, "reason": "consent", "file": f.name, "line": 1, "detail": None}
            for id, f in zip(ids, files, strict=True)
        ]
        self.store.path("traces", "rejected").mkdir(parents=True, exist_ok=True)
        ledger = self.store.path("traces", "rejected", f"{day}.jsonl")
        ledger.write_text("".join(json.dumps(line) + "\n" for line in lines))
        self.store.write(f"traces/days/{day}.json", report)

    def reports(self) -> dict[str, DayReport]:
        by_name = {d: self.store.read(f"traces/days/{d}.json", DayReport) for d in DAYS}
        return {d: r for d, r in by_name.items() if r is not None}

    def publish(self, *days: str) -> DatasetRef:
        reports = [self.reports()[day] for day in days]
        with open_lake(self.lake) as lake:
            window = Window(
                days=days,
                uri=lake.uri,
                rows=sum(r.admitted for r in reports),
                digest=digest_json([[r.day, r.digest] for r in reports]),
                snapshot=lake.snapshot,
            )
        self.store.write(f"traces/datasets/{window.digest}.json", window)
        return DatasetRef(uri=window.uri, rows=window.rows, digest=window.digest, snapshot=window.snapshot)

    def iterate(self, dataset: DatasetRef, days: Sequence[str], champion: ModelRef = BASE) -> Iteration:
        """Labels, preference data and plan by the stages themselves; a training that left what trainings leave."""
        store, iteration = self.store, identify(0, NAME, champion, dataset, "recipe")
        reports = tuple(self.reports()[day] for day in days)
        governed = GovernedTraces(iteration=iteration, source="s", days=reports)
        store.write(iteration.path("traces.json"), governed)
        store.write("iterations/latest.json", iteration)
        selection = Selection(method="dpo", max_principal_share=1.0, held_out_share=0.0)
        training = TRAINING.model_copy(update={"checkpoints": Checkpoints(mirror=str(self.root / "mirror"))})
        context = context_of(store, iteration, self.lake, selection=selection, training=training)
        labels = label_traces(context, None, ())
        consent = partial(consented, store, self.lake, dataset)
        preferences = build(context, labels.dataset, HeldApart({}), consent)
        plan = plan_training(context, preferences, consent)
        assert plan.data is not None, plan.decision
        mirrored = self.mirrored(iteration)
        (mirrored / "step-000001").mkdir(parents=True)
        (mirrored / "step-000001" / "weights.safetensors").write_text(f"a copy of {iteration.id}")
        (mirrored / CLAIM).write_text("{}")
        rows = next(store.path(iteration.path("reward_labels")).glob("*.parquet")).read_bytes()
        for left in (
            *(".reward_labels.0f/half", ".preference_dataset.0f/half", "training/trl/half"),  # of killed attempts
            *("training/held_out", "training/completions/step-000001", "training/nemo/0123ab/cache/train"),
        ):
            path = store.path(iteration.path(f"{left}.parquet"))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(rows)
        self.train(iteration)
        return iteration

    def mirrored(self, iteration: Iteration) -> Path:
        """Where the copies of its checkpoints are."""
        (place,) = places_of(self.store, iteration.id)
        return Path(place.uri, place.folder)

    def train(self, iteration: Iteration) -> None:
        store, folder = self.store, self.store.path(iteration.path("training"))
        for name in ("adapter", "model", "checkpoints/step-000001"):
            (folder / name).mkdir(parents=True)
            (folder / name / "weights.safetensors").write_text(f"{name} of {iteration.id}")
        adapter, model = (ModelRef(uri=str(folder / n), digest=digest_dir(folder / n)) for n in ("adapter", "model"))
        checkpoint = CheckpointRef(adapter=adapter, model=model, step=1)
        result = TrainingResult(
            iteration=iteration.id, plan_digest="p", checkpoint=checkpoint, metrics=(), seconds=1, attempts=1,
            resumed_from=(), health=Health(), goodput=Goodput(total_s=1, productive_s=1, badput_s={}), preemptions=(),
        )  # fmt: skip
        store.write(iteration.path("training", "result.json"), result)
        recorded = record(
            MlflowAddresses(self.tracking_uri),
            store,
            iteration,
            checkpoint,
            JudgedCandidate("PASS", "", "bundle"),
            RunContents(
                params={"steps": 2},
                metrics=[],
                plots={},
                card=dict.fromkeys(("Data", "Evaluation", "Intended use", "Limits"), "some"),
                code_version="abc",
            ),
        )
        assert recorded.version is not None
        store.write(iteration.path("model_version.json"), recorded.version)

    def model(self, iteration: Iteration) -> ModelRef:
        result = self.store.read(iteration.path("training", "result.json"), TrainingResult)
        assert result is not None
        return result.checkpoint.model

    def version(self, iteration: Iteration) -> ModelVersion:
        result = self.store.read(iteration.path("model_version.json"), ModelVersion)
        assert result is not None
        return result

    def propose(self, iteration: Iteration) -> str:
        """Why the iteration's version is not let in."""
        version = self.version(iteration)
        return propose(
            self.store,
            iteration,
            RolloutCandidate(version, JudgedCandidate("PASS", version.model.digest, "bundle")),
            policy_of(Rollout(dwell_s=(0.0, 0.0, 0.0))),
            NOW.timestamp(),
        ).refused


@dataclass
class World:
    """The place with all that was made in it."""

    place: Place
    first: Iteration
    second: Iteration
    third: Iteration


def raw_row(user: str, day: str, number: int) -> dict[str, Any]:
    ids = {"id": f"o-{short(user)}-{day}-{number}", "trace_id": f"trace-{short(user)}-{day}-{number}"}
    text = json.dumps([{"role": "user", "content": secret(user)}])
    return {**ids, "start_time": f"{day} {number:02d}:00:00.000000", "user_id": user, "input": text}


def make(root: Path, ann: str) -> World:
    """`ann`: what the table has for Ann. She has rows on days 5 and 6, Bob on all, Cyd on day 7 only."""
    place = Place(root)
    for day, users in zip(DAYS, ((ann, BOB), (ann, BOB), (BOB, CYD)), strict=True):
        place.govern(day, [row(user, day, n) for user in users for n in range(6)])
        raw = [json.dumps(raw_row(ANN if user == ann else user, day, n)) for user in users for n in range(6)]
        report = [json.dumps({"id": f"s{line[:24]}", "trace_id": json.loads(line)["trace_id"]}) for line in raw]
        for folder, lines in (("observations_v2", [*raw, raw[0][:60]]), ("scores", report)):  # one line broke off
            path = place.store.path("production", folder, f"{day}.jsonl.gz")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(gzip.compress("".join(f"{line}\n" for line in lines).encode(), mtime=0))
    staged = place.store.path("traces", "staging", "0f", "0")
    staged.mkdir(parents=True)
    (staged / "2026-01-05.0.arrow").write_text(f"{ann} {secret(ANN)}")  # of a run that was killed
    first = place.iterate(place.publish(*DAYS[:2]), DAYS[:2])
    second = place.iterate(place.publish(DAYS[2]), DAYS[2:], champion=place.model(first))
    third = place.iterate(place.publish(DAYS[0]), DAYS[:1])
    return World(place, first, second, third)


@pytest.fixture(scope="session")
def _made(tmp_path_factory: pytest.TempPathFactory) -> tuple[World, Path]:
    """The world, made once, and a copy of its files."""
    root = tmp_path_factory.mktemp("erasure") / "data"
    world = make(root, str(pseudonym(ANN)))
    copy = root.with_name("copy")
    shutil.copytree(root, copy)
    return world, copy


@pytest.fixture
def world(_made: tuple[World, Path]) -> World:
    """The world as it was made, whatever the test before did to it."""
    result, copy = _made
    put_back(result.place.root, copy)
    return result


def put_back(root: Path, copy: Path) -> None:
    for path in root.iterdir():
        if path.name != "mlflow":
            shutil.rmtree(path)
    # MLflow keeps its database open: it gets its old content, not a new file.
    shutil.copytree(copy, root, dirs_exist_ok=True)
