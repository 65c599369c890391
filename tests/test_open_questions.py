"""Seed 002's open questions by its DPO recipe, to the plan of a training: no reference, a judge on 127.0.0.1."""

import hashlib
import json
from collections.abc import Generator
from pathlib import Path

import dagster as dg
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from assets.graph import ASSETS
from assets.records import LABELS, PLAN, PREFERENCES, SAMPLES
from assets.resources import Deployment, records
from evals.suites import not_asked
from pipeline.demo.desk import MODEL_DIR
from pipeline.rewards.judge.admission import CONTROLS
from tests.fork_server import ForkServer
from tests.loop import ROOT, forked, instance
from tests.pipeline.rewards.judge.endpoint import MODEL, Request, Said, Server, parts, scored, serving

pytestmark = [pytest.mark.variant, pytest.mark.slow, pytest.mark.timeout(600)]

STAGES = ("traces", "reward_labels", "reward_model", "samples", "preference_dataset", "training_plan")
TOPICS = (
    *("EKS Auto Mode", "Karpenter", "managed node groups", "EKS add-ons", "Pod Identity", "Fargate", "EKS Anywhere"),
    *("spot capacity", "the VPC CNI", "Bottlerocket"),
)
RIGHT = {control.right for control in CONTROLS}


def judge(server: Server, request: Request, place: int) -> Said:
    """Passes its admission; an answer about a topic has a score of its own, whatever it says."""
    said = parts(request)
    answer = said["answer to be scored"]
    if "advantages" in json.dumps(said):
        return scored(1 + hashlib.sha256(answer.encode()).digest()[0] % 5)
    return scored(5 if answer in RIGHT else 1)


@pytest.fixture
def judging(monkeypatch: pytest.MonkeyPatch) -> Generator[Server]:
    with serving(judge) as server:
        monkeypatch.setenv("JUDGE_URL", server.url)
        yield server


def deployment(folder: Path, *overrides: str) -> Deployment:
    rows = [{"input": f"What are the advantages of {topic}?", "output": f"{topic} is convenient."} for topic in TOPICS]
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), folder / "part-0.parquet")
    golden = "".join(f'{{"prompt": "Which is service {n}?", "reference": "{n}"}}\n' for n in range(60))
    (folder / "golden.jsonl").write_text(golden)
    changes = [
        f"data_root={folder / 'data'}",
        f"base_model.uri={MODEL_DIR}",
        f"traces.source={{kind: rows, uri: {folder / 'part-0.parquet'}, licence: own, consent: true, day: 2026-01-05,"
        "fields: {prompt: input, completion: output}}",
        "traces.lake={}",
        f"rewards.judge={{model: {MODEL}, digest: 'sha256:0f'}}",
        "samples={per_prompt: 6, max_completion_tokens: 48}",
        f"evaluation.suites.0.path={folder / 'golden.jsonl'}",
        f"evaluation.suites.0.sha256={hashlib.sha256(golden.encode()).hexdigest()}",
        "evaluation.serving={kind: transformers}",
        "evaluation.max_completion_tokens=48",
        "evaluation.max_standard_error=0.5",
        "evaluation.guard_margin=0.4",
        "compute={workers: 1}",
        "training.distribution.strategy=ddp",
        "training.checkpoints.mirror=null",
    ]
    return Deployment(
        recipe_path=str(ROOT / "jobs" / "recipes" / "spot_h200_dpo.yaml"), overrides=[*changes, *overrides]
    )


def test_open_questions_are_judged_and_planned(tmp_path: Path, judging: Server, fork_server: ForkServer) -> None:
    with forked(fork_server), instance(tmp_path / "home") as home:
        for method in ("dpo", "sft"):
            settings = deployment(tmp_path / "set", f"selection.method={method}")
            resources = {"deployment": settings, "io_manager": records}
            asked = len(judging.requests)
            selection = [dg.AssetKey(name) for name in STAGES]
            assert dg.materialize(ASSETS, instance=home, resources=resources, selection=selection).success
            store, iteration = settings.store(), settings.latest()
            plan = PLAN.read(store, iteration.id)
            assert plan.decision.method == method and plan.data is not None
            trained = pq.read_table(plan.data.uri).to_pylist()
            assert {row["prompt"][-1]["content"][:24] for row in trained} == {"What are the advantages "}
    labels, fresh, dataset = (each.read(store, iteration.id) for each in (LABELS, SAMPLES, PREFERENCES))
    assert len(judging.requests) == asked, "what was judged for one method is not asked again for another"
    assert (labels.labelled, labels.unlabelled) == (10, {})
    assert (fresh.prompts, fresh.labelled, fresh.drawn) == (10, 60, 0)
    assert dataset.winners is not None and dataset.winners.rows >= 5
    assert dataset.evidence.verifiable_prompts == 0
    assert list(not_asked(store, iteration)) == ["reviewed"]
