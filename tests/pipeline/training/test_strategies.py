"""FSDP2 and ZeRO over two ranks on CPU, by accelerate's gate in `tests/ranks_as_devices`: what each strategy trains is
what one process trains. What a device adds (NCCL, bf16, offload) is in benchmarks/gpu_matrix.py."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from benchmarks.kills import result_of
from pipeline.demo import MODEL_DIR
from pipeline.recipe import Distribution, Lora
from pipeline.recipe.methods import MethodName
from pipeline.selection.cost import parameters
from pipeline.training.result import TrainingResult
from tests.fork_server import ForkServer
from tests.pipeline.training.plans import GRPO_SETTINGS, folder, make_plan
from tests.pipeline.training.runs import resume, train

pytestmark = pytest.mark.slow
TESTS = Path(__file__).parents[2]
DEEPSPEED = TESTS.parent / ".venv" / "deepspeed"
ADAPTER, WHOLE = Lora(), None
STEPS = 6


def environment(strategy: str) -> Mapping[str, str]:
    """Of the training's processes. Skips where DeepSpeed or what builds its operators is missing."""
    path = [str(TESTS / "ranks_as_devices"), os.environ.get("PYTHONPATH", "")]
    if strategy.startswith("zero"):
        if not DEEPSPEED.is_dir():
            pytest.skip(f"no DeepSpeed in {DEEPSPEED}: make test installs it there")
        if shutil.which("c++") is None:
            pytest.skip("no c++ on PATH, with which DeepSpeed compiles what its ranks on CPU speak through")
        path.insert(1, str(DEEPSPEED))
    return {
        "PYTHONPATH": os.pathsep.join(filter(None, path)),
        "PATH": os.pathsep.join([str(DEEPSPEED / "bin"), os.environ["PATH"]]),  # ninja
        "DS_ACCELERATOR": "cpu",
        "TORCH_EXTENSIONS_DIR": str(DEEPSPEED.with_name("torch_extensions")),  # of operators compiled once
    }


def plan(root: Path, method: MethodName, strategy: Any, lora: Lora | None) -> Path:
    spread, processes = Distribution(strategy=strategy), 1 if strategy == "ddp" else 2
    store, training_plan = make_plan(root, method, processes=processes, distribution=spread, lora=lora)
    return folder(store, training_plan) / "plan.json"


def losses(result: TrainingResult) -> list[float]:
    return [row["loss"] for row in result.metrics if "loss" in row]


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory, fork_server: ForkServer) -> Any:
    """The losses of the same training in one process, by method and what is trained; each is made once."""
    losses_by_case: dict[tuple[str, bool], list[float]] = {}

    def of(method: MethodName, lora: Lora | None) -> list[float]:
        key = (method, lora is None)
        if key not in losses_by_case:
            path = plan(tmp_path_factory.mktemp("alone"), method, "ddp", lora)
            assert fork_server.attempt(path).code == 0, fork_server.said()
            losses_by_case[key] = losses(result_of(path))
        return losses_by_case[key]

    return of


def case(method: MethodName, strategy: str, lora: Lora | None, *, usual: bool = False) -> Any:
    id = f"{method}-{strategy}-{'all' if lora is None else 'lora'}"
    return pytest.param(method, strategy, lora, id=id, marks=() if usual else pytest.mark.variant)


@pytest.mark.parametrize(
    ("method", "strategy", "lora"),
    [
        case("dpo", "fsdp2", WHOLE, usual=True),  # whose reference is a second model
        case("dpo", "fsdp2", ADAPTER),
        case("dpo", "zero2", ADAPTER),
        case("dpo", "zero2", WHOLE),
        *(case(method, strategy, ADAPTER) for method in ("kto", "sft") for strategy in ("fsdp2", "zero2")),
        *(case("kto", strategy, WHOLE) for strategy in ("fsdp2", "zero2")),
    ],
)
def test_two_ranks_train_what_one_process_trains(
    method: MethodName, strategy: str, lora: Lora | None, tmp_path: Path, alone: Any
) -> None:
    result = train(plan(tmp_path, method, strategy, lora), environment(strategy))
    assert losses(result) == pytest.approx(alone(method, lora), abs=2e-3)
    assert parameters(result.checkpoint.model.uri) == parameters(MODEL_DIR)


@pytest.mark.variant
@pytest.mark.parametrize("strategy", ["fsdp2", "zero2"])
def test_grpo_begins_at_its_reference(strategy: str, tmp_path: Path) -> None:
    settings = GRPO_SETTINGS.model_copy(update={"beta": 0.1, "learning_rate": 1e-6})
    spread = Distribution(strategy=strategy)  # pyright: ignore[reportArgumentType]
    store, training_plan = make_plan(tmp_path, "grpo", processes=2, distribution=spread, lora=None, grpo=settings)
    result = train(folder(store, training_plan) / "plan.json", environment(strategy))
    assert [row["kl"] for row in result.metrics if "kl" in row] == pytest.approx([0.0] * STEPS, abs=1e-3)


@pytest.mark.variant
@pytest.mark.parametrize("strategy", ["fsdp2", "zero2"])
@pytest.mark.parametrize("method", ["dpo", "grpo"])
def test_killed_ranks_end_with_the_same_bits(method: MethodName, strategy: str, tmp_path: Path) -> None:
    resumed = resume(lambda root: plan(root, method, strategy, ADAPTER), tmp_path, STEPS, environment(strategy))
    assert resumed.killed.resumed_from == (2,)
    assert resumed.same
