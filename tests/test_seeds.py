"""Each recipe of a seed from its own data format to a verdict of the gate, on CPU. Changed is what this machine forces:
places, sizes, how many steps, and what answers. Of a model with random weights any verdict will do."""

import hashlib
import shutil
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import dagster as dg
import pytest

from assets.graph import ASSETS
from assets.records import CHECKPOINT, PLAN, REPORT
from assets.resources import Deployment, records
from evals.bundle import verify
from k8s.follow import Hooks
from pipeline.recipe import load
from tests import problem_sets
from tests.fork_server import ForkServer
from tests.k8s.world import Processes
from tests.loop import ROOT, instance
from tests.own import Asked, write_langfuse_export
from tests.pipeline.training.test_strategies import DEEPSPEED, environment
from tests.problem_sets import ASKED, TRAINED

pytestmark = [pytest.mark.slow, pytest.mark.variant, pytest.mark.timeout(600), pytest.mark.usefixtures("forking")]

SIZES = (
    "rewards.verifier.workers=2", "evaluation.serving={kind: transformers}", "evaluation.max_completion_tokens=32",
    "evaluation.max_standard_error=0.2", "evaluation.guard_margin=0.1",
)  # fmt: skip
SAMPLES = ("samples.prompts=150", "samples.max_completion_tokens=32", "samples.serving={kind: transformers}")


LABELLED = (
    "traces.source.kind=pairs", "traces.source.licence=own", "traces.source.consent=true",
    "traces.source.day=2026-01-05", "traces.source.fields={prompt: input, answers: output, rating: final_reward}",
    "traces.source.scale=[0, 1]", "rewards.judge=null", "samples=null",
)  # fmt: skip
"""As docs/traces.md has it."""


def groups(steps: int, every: int) -> tuple[str, ...]:
    """Of GRPO: optimizer steps, and how many lie between two checkpoints, and two validations."""
    return (
        f"training.grpo.steps={steps}",
        "training.grpo.prompts_per_step=8",
        "training.grpo.max_completion_tokens=32",
        f"training.checkpoints.every_steps={every}",
        f"training.validation.every_steps={every}",
        "training.validation.prompts=8",
        "training.validation.max_completion_tokens=32",
    )


class Case(NamedTuple):
    source: Callable[[Path], Path]
    """Writes the set in a folder; returns what `traces.source.uri` names."""
    suites: tuple[Callable[[Path], Path], ...]
    """Writes the file of each suite in a folder."""
    steps: int
    """Of the optimizer."""
    changes: tuple[str, ...]
    on_cluster: bool = False


def gsm8k(folder: Path) -> Path:
    return problem_sets.write_gsm8k(folder / "gsm8k.jsonl", ASKED)


def math500(folder: Path) -> Path:
    return problem_sets.write_math500(folder / "math500.jsonl", ASKED)


def aime(folder: Path) -> Path:
    return problem_sets.write_aime(folder / "aime.parquet", ASKED[:30])


def golden(folder: Path) -> Path:
    return problem_sets.write_own(folder / "golden.jsonl", ASKED)


def langfuse(folder: Path) -> Path:
    """What users asked, each four times, in an export."""
    asked = [
        Asked(each.prompt, each.answer, f"{each.solution}\n#### {each.answer}", "so it is 0\n#### 0")
        for each in TRAINED
    ]
    return write_langfuse_export(folder, asked[:200])


def math_and_gsm8k(folder: Path) -> Path:
    """As the recipe's comment has it; what lies beside it for testing is not trained on."""
    problem_sets.write_gsm8k(folder / "gsm8k" / "train.jsonl", TRAINED[:200])
    problem_sets.write_gsm8k(folder / "gsm8k" / "test.jsonl", ASKED)
    for name, rows in (("train/algebra", TRAINED[200:400]), ("train/geometry", TRAINED[400:]), ("test/algebra", ASKED)):
        problem_sets.write_math(folder / f"{name}.jsonl", rows)
    return folder


CASES: Mapping[str, Case] = {
    "gsm8k_8gb": Case(
        lambda folder: problem_sets.write_gsm8k(folder / "train.jsonl", TRAINED), (gsm8k,), 4, (*SAMPLES, *groups(4, 2))
    ),
    "fsdp_2gpu": Case(
        math_and_gsm8k,
        (math500, gsm8k, aime),
        4,
        (
            *SAMPLES,
            *groups(4, 2),
            "training.grpo.generation=transformers",
            "training.grpo.trainer_args={per_device_train_batch_size: 16}",
        ),
    ),
    "eks_workshop": Case(
        lambda folder: problem_sets.write_openmathinstruct(folder, TRAINED),
        (gsm8k,),
        4,
        (*SAMPLES, *groups(4, 2)),
        on_cluster=True,
    ),
    "gke_deepscaler": Case(
        lambda folder: problem_sets.write_deepscaler(folder / "deepscaler.json", TRAINED),
        (math500, aime),
        8,
        (*SAMPLES, *groups(8, 4)),
        on_cluster=True,
    ),
    "spot_h200_grpo": Case(langfuse, (golden,), 4, (*groups(4, 2), "traces.lake={}"), on_cluster=True),
    "spot_h200_dpo": Case(
        lambda folder: problem_sets.write_labelled(folder, TRAINED[:200]),
        (golden,),
        4,
        (
            *LABELLED,
            "traces.lake={}",
            "training.dpo.steps=4",
            "training.dpo.batch_size=16",
            "training.dpo.max_tokens=128",
            "training.checkpoints.every_steps=2",
            "training.checkpoints.mirror=null",
            "compute.nodes=1",
            "compute.processes=2",
        ),
        on_cluster=True,
    ),
}


def deployment(name: str, case: Case, folder: Path) -> Deployment:
    model = problem_sets.random_model(folder / "model")
    given = [f"data_root={folder / 'data'}", f"base_model.uri={model}"]
    given.append(f"traces.source.uri={case.source(folder / 'set')}")
    for number, write in enumerate(case.suites):
        path = write(folder / "suites")
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        asked = {"path": path, "sha256": digest, "max_completion_tokens": 32}
        given += [f"evaluation.suites.{number}.{field}={value}" for field, value in asked.items()]
    recipe = str(ROOT / "jobs" / "recipes" / f"{name}.yaml")
    if case.on_cluster:
        placed = load(recipe).compute.kubernetes
        assert placed is not None
        image = placed.image.replace("0" * 64, "5" * 64)  # as if built and pushed
        given += [f"compute.kubernetes.mount={folder}", f"compute.kubernetes.image={image}"]
    return Deployment(recipe_path=recipe, overrides=[*given, *SIZES, *case.changes])


@pytest.fixture
def nemo_rl(tmp_path: Path, shared_data: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout with NeMo RL's own configuration and the stand-in for its program, and a `uv` that runs it."""
    checkout = tmp_path / "nemo-rl"
    shutil.copytree(ROOT / "tests" / "pipeline" / "training" / "nemo" / "checkout", checkout)
    shutil.copytree(shared_data / "nemo-rl" / "v0.7.0", checkout / "examples" / "configs")
    (checkout / "behaviour.json").write_text("{}")
    uv = checkout / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text(f'#!/bin/sh\nshift 2\nexec {sys.executable} "$@"\n')
    uv.chmod(0o755)
    monkeypatch.setenv("PATH", f"{uv.parent}:/usr/bin:/bin")
    return checkout


@contextmanager
def cluster(folder: Path, server: ForkServer, arguments: Sequence[str], patch: pytest.MonkeyPatch) -> Generator[None]:
    """Gangs are processes of this machine, behind an API in memory."""
    with Processes(folder, server, arguments=arguments) as world:
        patch.setattr("assets.cluster.connect", lambda kubeconfig: world.client())
        patch.setattr("assets.cluster.Hooks", partial(Hooks, sleep=world.sleep))
        yield


def devices(strategy: str, patch: pytest.MonkeyPatch) -> None:
    """Count this machine's cores as devices of TRL's ranks."""
    for variable, value in environment(strategy).items():
        patch.setenv(variable, value)
    if strategy == "zero2":
        patch.syspath_prepend(DEEPSPEED)


@pytest.mark.parametrize("name", CASES)
def test_recipe_of_a_seed_ends_in_a_verdict(
    name: str, tmp_path: Path, fork_server: ForkServer, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    case = CASES[name]
    settings = deployment(name, case, tmp_path)
    recipe = settings.recipe()
    if recipe.training.engine == "trl":
        devices(recipe.training.distribution.strategy, monkeypatch)
    with ExitStack() as stack:
        if case.on_cluster:
            is_nemo = recipe.training.engine == "nemo_rl"
            arguments = ["--nemo-rl", str(request.getfixturevalue("nemo_rl"))] if is_nemo else []
            stack.enter_context(cluster(tmp_path, fork_server, arguments, monkeypatch))
        home = stack.enter_context(instance(tmp_path / "dagster"))
        resources = {"deployment": settings, "io_manager": records}
        result = dg.materialize(ASSETS[:9], instance=home, resources=resources)
        verdict = result.output_for_node("gate_verdict")
    store, id = settings.store(), settings.latest().id
    plan, checkpoint, report = PLAN.read(store, id), CHECKPOINT.read(store, id), REPORT.read(store, id)
    assert (plan.decision.method, checkpoint.engine) == (recipe.selection.method, recipe.training.engine)
    assert checkpoint.checkpoint.step == case.steps
    written = [each.name for each in recipe.evaluation.asked if each.kind == "items"]
    assert [each.suite for each in report.measurements] == written
    assert verify(report.bundle.uri, verdict.bundle_digest) == verdict
