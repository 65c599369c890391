"""The recipes that are the seeds' systems: each says what it takes, carries the seed's figures, and can be built."""

import re
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from evals.runner import sampling
from k8s.estimate import describe
from pipeline.core.storage import Store
from pipeline.recipe import Recipe, load
from pipeline.recipe.methods import DPO, GRPO
from pipeline.training.distribution import environment
from pipeline.training.nemo.render import configuration
from pipeline.training.plan import TrainingPlan
from tests.pipeline.training.plans import make_plan

ROOT = Path(__file__).parent.parent.parent
FILES = sorted((ROOT / "jobs" / "recipes").glob("*.yaml"))
NAMES = [file.stem for file in FILES]
SEEDS = [name for name in NAMES if name not in ("desk", "embedded", "own")]


def recipe(name: str, *overrides: str) -> Recipe:
    return load(ROOT / "jobs" / "recipes" / f"{name}.yaml", list(overrides))


def head(name: str) -> str:
    """The comment above the first key, as one line."""
    text = (ROOT / "jobs" / "recipes" / f"{name}.yaml").read_text()
    return " ".join(re.sub(r"(?m)^# *", "", text[: text.index("\nname:")]).split())


def at(tree: Any, path: str) -> Any:
    return reduce(lambda node, key: node[key] if isinstance(node, dict) else getattr(node, key), path.split("."), tree)


def method(name: str) -> GRPO | DPO:
    chosen = recipe(name)
    return chosen.training.dpo if chosen.selection.method == "dpo" else chosen.training.grpo


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Store, TrainingPlan]]:
    return {kind: make_plan(tmp_path_factory.mktemp(kind), kind) for kind in ("grpo", "dpo")}


@pytest.fixture
def plan(name: str, demo: dict[str, tuple[Store, TrainingPlan]]) -> TrainingPlan:
    """The recipe's training over the embedded model and problems."""
    chosen = recipe(name)
    _, plan = demo[method(name).kind]
    return plan.model_copy(
        update={
            "method": method(name),
            "training": chosen.training.without_methods(),
            "rewards": chosen.rewards,
            "nodes": chosen.compute.nodes,
            "processes": chosen.compute.processes,
            "held_out": plan.data if chosen.training.validation.every_steps else None,
        }
    )


@pytest.fixture
def one_rank() -> Iterator[None]:
    """A process group of one: a config for several processes looks for its group."""
    import torch.distributed
    from accelerate.state import AcceleratorState

    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()
    AcceleratorState._reset_state(reset_partial_state=True)


def test_each_is_another_training_and_in_the_docs() -> None:
    assert len({recipe(name).digest() for name in NAMES}) == len(NAMES)
    listed = (ROOT / "docs" / "recipes.md").read_text()
    assert [name for name in NAMES if f"| `{name}` |" not in listed] == []


EKS, GSM8K, SPOT, GKE, FSDP = "eks_workshop", "gsm8k_8gb", "spot_h200", "gke_deepscaler", "fsdp_2gpu"


@pytest.mark.parametrize("name", SEEDS)
def test_a_step_splits_over_the_devices(name: str) -> None:
    settings, devices = method(name), recipe(name).compute.devices
    if isinstance(settings, GRPO):
        assert settings.prompts_per_step * settings.num_generations // settings.num_minibatches % devices == 0
    else:
        assert settings.batch_size % devices == 0


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        (
            "own",
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 16, "learning_rate": 1e-5, "beta": 0.01,
             "use_vllm": True, "max_completion_length": 512},
        ),
        (
            GSM8K,
            {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "num_generations": 4, "beta": 0.0,
             "learning_rate": 5e-5, "max_grad_norm": 1.0, "loss_type": "dr_grpo", "num_iterations": 1},
        ),
        (
            f"{SPOT}_dpo",
            {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 8, "learning_rate": 5e-7, "beta": 0.1,
             "max_length": 1024},  # the embedded model has no room for the 4,096 of the recipe
        ),
        (
            FSDP,
            {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 8, "use_vllm": True,
             "vllm_mode": "colocate", "num_generations": 8},
        ),
    ],
)  # fmt: skip
@pytest.mark.slow
@pytest.mark.usefixtures("one_rank")
def test_trl_takes_it(name: str, figures: dict[str, Any], plan: TrainingPlan, tmp_path: Path) -> None:
    from pipeline.training.methods import trainer_of
    from pipeline.training.reward_function import RewardFunction

    reward = RewardFunction(plan.rewards, check=lambda tasks: [])
    built: Any = trainer_of(plan, tmp_path, reward).arguments()
    assert {key: getattr(built, key) for key in figures} == figures


@pytest.mark.parametrize(("name", "kind"), [(GSM8K, "DEEPSPEED"), (f"{SPOT}_dpo", "FSDP"), (FSDP, "FSDP")])
def test_accelerate_is_told_how_to_spread_it(name: str, kind: str) -> None:
    assert environment(recipe(name).training.distribution, on_gpu=True)[f"ACCELERATE_USE_{kind}"] == "true"


NEMO: list[tuple[str, dict[str, Any]]] = [
    (
        EKS,
        {
            "grpo.num_prompts_per_step": 32, "grpo.num_generations_per_prompt": 16, "grpo.max_num_steps": 100,
            "grpo.normalize_rewards": True, "grpo.use_leave_one_out_baseline": True, "grpo.seed": 42,
            "loss_fn.reference_policy_kl_penalty": 0.01, "loss_fn.reference_policy_kl_type": "k3",
            "loss_fn.ratio_clip_min": 0.2, "loss_fn.ratio_clip_max": 0.2, "loss_fn.token_level_loss": True,
            "policy.train_global_batch_size": 512, "policy.train_micro_batch_size": 4, "policy.max_grad_norm": 1.0,
            "policy.dtensor_cfg.lora_cfg.enabled": True, "policy.dtensor_cfg.lora_cfg.dim": 8,
            "policy.dtensor_cfg.lora_cfg.alpha": 32, "policy.generation.max_new_tokens": 512,
            "policy.generation.temperature": 1.0, "policy.generation.colocated.enabled": True,
            "policy.generation.vllm_cfg.gpu_memory_utilization": 0.6, "policy.optimizer.kwargs.lr": 5e-6,
            "checkpointing.save_period": 10, "checkpointing.keep_top_k": 5, "cluster.num_nodes": 2,
            "cluster.gpus_per_node": 8,
        },
    ),
    (
        f"{SPOT}_grpo",
        {
            "grpo.num_prompts_per_step": 32, "grpo.max_num_steps": 1000, "loss_fn.reference_policy_kl_penalty": 0.1,
            "loss_fn.ratio_clip_min": 0.2, "policy.optimizer.kwargs.lr": 1e-5, "cluster.num_nodes": 3,
            "cluster.gpus_per_node": 8,
        },
    ),
    (
        GKE,
        {
            "grpo.num_prompts_per_step": 64, "grpo.num_generations_per_prompt": 32, "grpo.max_num_steps": 100,
            "grpo.max_val_samples": 256, "grpo.val_period": 10, "loss_fn.reference_policy_kl_penalty": 0.01,
            "loss_fn.ratio_clip_max": 0.2, "policy.train_global_batch_size": 512, "policy.train_micro_batch_size": 1,
            "policy.logprob_batch_size": 2, "policy.generation.max_new_tokens": 4096,
            "policy.dtensor_cfg.lora_cfg.enabled": False, "checkpointing.save_period": 10,
            "checkpointing.keep_top_k": 3, "cluster.num_nodes": 2, "cluster.gpus_per_node": 8,
        },
    ),
]  # fmt: skip


@pytest.mark.parametrize(("name", "figures"), NEMO)
def test_nemo_rl_is_told_what_the_seed_tells_it(name: str, figures: dict[str, Any], plan: TrainingPlan) -> None:
    held_out = plan.held_out and plan.held_out.model_copy(update={"rows": 256})
    tree = configuration(plan.model_copy(update={"held_out": held_out}), "/run", "/nemo", 5000)
    assert {path: at(tree, path) for path in figures} == figures


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        (GSM8K, {"gsm8k": ("target", 2, 1.0, 256)}),
        (GKE, {"math500": ("target", 16, 0.6, 32_768), "aime": ("report", 16, 0.6, 32_768)}),
        (
            FSDP,
            {"math500": ("target", 8, 1.0, 1024), "gsm8k": ("guard", 2, 1.0, 1024), "aime": ("report", 16, 0.6, 3072)},
        ),
    ],
)
def test_each_is_judged_on_its_own_task(name: str, asked: dict[str, tuple[str, int, float, int]]) -> None:
    section = recipe(name).evaluation
    drawn = {each.name: (each.role, sampling(section, each)) for each in section.asked}
    limits = {of: (role, p.samples, p.temperature, p.max_completion_tokens) for of, (role, p) in drawn.items()}
    assert limits == asked


@pytest.mark.parametrize("name", SEEDS)
def test_the_head_says_what_the_command_prints(name: str) -> None:
    printed = dict(re.findall(r"(?m)^  ([a-z ]+?)  +([\d., to]+\d)", describe(recipe(name))))
    assert f"duration: {printed['hours']} hours" in head(name)
    assert printed["an iteration"] == "0.00" or f"cost: {printed['an iteration']} USD" in head(name)


def test_the_recipe_to_copy_has_the_cost_model_s_hours() -> None:
    (printed,) = re.findall(r"cost model +(.*?), SFT", describe(recipe("own")))
    assert f"by the cost model {printed} hours" in head("own")
