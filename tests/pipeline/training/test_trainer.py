"""The trainer as a process: plan in, result out, exit codes, and the same bits after an interruption."""

import json
import re
import shutil
import signal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from benchmarks.kills import result_of
from pipeline.core.storage import ModelRef, Store, digest_dir
from pipeline.demo import MODEL_DIR
from pipeline.demo.task import problems
from pipeline.recipe import Checkpoints
from pipeline.recipe.methods import METHODS
from pipeline.recipe.training import Lora
from pipeline.rollout.record import ErasureBlock, block
from pipeline.training.checkpoints.mirror import mirror_folder, places_of
from pipeline.training.launch import TrainingRefused, train
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import BLOCKED, NEVER_RETRY, TrainingResult
from tests.fork_server import ForkServer
from tests.pipeline.training.plans import (
    DPO_SETTINGS,
    GRPO_SETTINGS,
    SFT_SETTINGS,
    adapter,
    folder,
    make_plan,
)
from tests.variants import one_and_variants

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("method", METHODS)
def test_rows_whose_consent_was_withdrawn_are_left_out(tmp_path: Path, method: str) -> None:
    _, plan = make_plan(tmp_path, method, withdrawn=8)
    assert plan.without_consent >= 8 and plan.data is not None
    asked = {row["prompt"][0]["content"] for row in pq.read_table(plan.data.uri).to_pylist()}
    assert asked.isdisjoint(p.prompt for p in problems(3, "train", 48)[:8])
    with pytest.raises(ValueError, match=r"Consent to all \d+ rows was withdrawn"):
        make_plan(tmp_path / "nobody", method, withdrawn=48)


def attempt(
    fork_server: ForkServer, store: Store, plan: TrainingPlan, at: str = "", sent: signal.Signals | None = None
) -> int:
    """Run the trainer and send it a signal when it says `at`; returns its exit code."""
    return fork_server.attempt(folder(store, plan) / "plan.json", sent, at=at).code


@pytest.mark.usefixtures("forking")
def test_blocked_training_ends_at_its_next_step(tmp_path: Path, fork_server: ForkServer) -> None:
    store, plan = make_plan(tmp_path)
    lines: list[str] = []

    def log(line: str) -> None:
        lines.append(line)
        if "step 2/6" in line:
            block(store, ErasureBlock(proof="p", digests=(), iterations=(plan.iteration,)))

    with pytest.raises(TrainingRefused, match=r"blocked: An erasure removed data"):
        train(store, plan, 600, log)
    steps = [line for line in lines if "  " in line and "step " in line]
    assert len(steps) <= 4, "it ends at the step after the word, or the one under way"
    assert not (folder(store, plan) / "result.json").exists()
    assert not (folder(store, plan) / "adapter").exists()
    assert attempt(fork_server, store, plan) == BLOCKED, "before it begins, too"


def test_a_closed_mirror_ends_a_training_that_no_file_tells(tmp_path: Path, fork_server: ForkServer) -> None:
    """On a host whose data root the erasure did not see."""
    store, plan = make_plan(tmp_path / "data", checkpoints=Checkpoints(every_steps=2, mirror=f"{tmp_path}/mirror"))
    (place,) = places_of(store, plan.iteration)
    mirror = mirror_folder(place.uri, place.folder)
    assert mirror is not None
    assert attempt(fork_server, store, plan, "step 3/6", signal.SIGTERM) == 143
    assert mirror.steps(), "a checkpoint was copied"
    mirror.close(plan.iteration)
    assert attempt(fork_server, store, plan) == BLOCKED, fork_server.said()
    assert mirror.steps() == [] and not (folder(store, plan) / "adapter").exists()


@pytest.mark.usefixtures("forking")
@pytest.mark.parametrize("method", one_and_variants(METHODS, "grpo"))
def test_interrupted_training_ends_with_the_same_bits(method: str, tmp_path: Path, fork_server: ForkServer) -> None:
    whole, plan = make_plan(tmp_path / "whole", method)
    assert attempt(fork_server, whole, plan) == 0, fork_server.said()
    first = result_of(folder(whole, plan) / "plan.json")
    assert [m["step"] for m in first.metrics] == [1, 2, 3, 4, 5, 6]
    assert (method == "kto") == ("reference_point" in first.metrics[-1]) and "kl" not in first.metrics[-1]
    broken, same = make_plan(tmp_path / "broken", method)
    assert same.digest() == plan.digest()
    assert attempt(fork_server, broken, same, "step 3/6", signal.SIGTERM) == 143
    assert attempt(fork_server, broken, same, "step 5/6", signal.SIGKILL) == -signal.SIGKILL
    said: list[str] = []
    second = train(broken, same, 600, said.append)
    assert second is not None
    assert second.attempts == 3
    assert any("resuming at step-" in line for line in said)
    assert adapter(broken, same) == adapter(whole, plan)
    assert second.checkpoint.model.digest == first.checkpoint.model.digest
    assert train(broken, same, 600, said.append) == second  # a finished training is not run again
    assert not (folder(broken, same) / "trl").exists()
    files = [path for path in folder(broken, same).rglob("*") if path.is_file()]
    assert not [path for path in files if str(tmp_path).encode() in path.read_bytes()], "the data root may be moved"
    assert [each.cause for each in second.preemptions] == ["SIGTERM", "killed"]
    assert second.preemptions[0].lost_steps == 0, "a SIGTERM saves what was done"
    assert second.goodput.total_s == pytest.approx(second.goodput.productive_s + sum(second.goodput.badput_s.values()))


def test_a_plan_that_cannot_be_kept_is_never_retried(tmp_path: Path) -> None:
    store, plan = make_plan(tmp_path)
    path = folder(store, plan) / "plan.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "surprise": 1}))
    with pytest.raises(TrainingRefused, match="Extra inputs are not permitted"):
        train(store, plan, 600, print)
    assert store.read(f"iterations/{plan.iteration}/training/result.json", TrainingResult) is None


def without_template(root: Path) -> Path:
    """The embedded model, from which no training can begin."""
    broken = Path(shutil.copytree(MODEL_DIR, root / "broken"))
    (broken / "chat_template.jinja").unlink()
    return broken


LONG = GRPO_SETTINGS.model_copy(update={"max_completion_tokens": 10_000})
SHORT = {"max_tokens": 16}
TIED = {"lora": Lora(target_modules=".*embed_tokens"), "sft": SFT_SETTINGS.model_copy(update={"steps": 1})}


@pytest.mark.parametrize(
    ("method", "settings", "base", "complaint"),
    [
        ("grpo", {}, "other data", "changed since the plan was made"),
        ("grpo", {}, "other base", "changed since the plan was made"),
        ("grpo", {}, "without a template", "no chat template"),
        ("grpo", {"grpo": LONG}, "", r"longest prompt has \d+ tokens .* more than the model's context of \d+"),
        ("dpo", {"attention": "flash_attention_2"}, "", "lacks flash_attn"),
        ("dpo", {"dpo": DPO_SETTINGS.model_copy(update={"max_tokens": 24})}, "", r"\d+ of 48 prompts fill the 24"),
        ("sft", {"sft": SFT_SETTINGS.model_copy(update=SHORT)}, "", "tokens of max_tokens, or of the model's context"),
        ("sft", TIED, "", r"The merged model against the policy: a token's log-probability differs by .* nats"),
    ],
)
def test_what_no_retry_makes_fit_is_64(
    method: str, settings: dict[str, Any], base: str, complaint: str, tmp_path: Path, fork_server: ForkServer
) -> None:
    store, plan = make_plan(tmp_path, method, **settings)
    update: dict[str, Any] = {}
    if base == "other data":
        update = {"data": plan.data.model_copy(update={"digest": "0" * 64}) if plan.data else None}
    elif base:
        broken = without_template(tmp_path) if base != "other base" else MODEL_DIR
        digest = "0" * 64 if base == "other base" else digest_dir(broken)
        update = {"base": ModelRef(uri=str(broken), digest=digest)}
    (folder(store, plan) / "plan.json").write_text(plan.model_copy(update=update).model_dump_json())
    assert attempt(fork_server, store, plan) == NEVER_RETRY, fork_server.said()
    assert re.search(complaint, fork_server.said()), fork_server.said()
    assert not (folder(store, plan) / "result.json").exists()


def test_weights_that_are_no_numbers_stop_the_training(tmp_path: Path, fork_server: ForkServer) -> None:
    wild = GRPO_SETTINGS.model_copy(update={"learning_rate": 1e30})
    store, plan = make_plan(tmp_path, grpo=wild)
    assert attempt(fork_server, store, plan) == 0, fork_server.said()
    result = result_of(folder(store, plan) / "plan.json")
    assert result.health.verdict == "STOP"
    assert result.health.findings[-1].rule == "not_finite" and result.health.findings[-1].step == 1
    assert result.checkpoint.model == plan.base and result.checkpoint.step == 0
