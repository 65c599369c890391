"""The configuration: every setting is rendered, refused or without effect, and every key is one of NeMo RL's."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from pipeline.recipe import Checkpoints, Distribution, Lora, Training, Validation, load
from pipeline.recipe.methods import GRPO
from pipeline.training.nemo.limits import EXAMPLE
from pipeline.training.nemo.render import configuration, refuse, unknown_keys
from pipeline.training.plan import TrainingPlan

from .plans import SECTIONS, make_plan

Tree = dict[str, Any]
RECIPES = Path(__file__).parents[4] / "jobs" / "recipes"


def rendered(plan: TrainingPlan) -> Tree:
    return configuration(plan, "/run", "/nemo", 100)


def said(plan: TrainingPlan) -> str:
    """The configuration apart from the plan's digest, which is in its paths and changes with almost anything."""
    return json.dumps(rendered(plan)).replace(plan.digest()[:12], "")


OTHER: dict[str, dict[str, Any]] = {
    "grpo": {
        "steps": 12, "prompts_per_step": 8, "num_generations": 8, "num_minibatches": 2,
        "max_completion_tokens": 16, "learning_rate": 0.5, "temperature": 0.7, "beta": 0.2,
        "loss_type": "grpo", "generation": "vllm_server", "kl_stop": 2.0,
        "trainer_args": {"policy.generation.top_p": 0.9},
    },
    "lora": {"r": 8, "alpha": 16, "dropout": 0.1, "target_modules": "q_proj", "quantise": "nf4",
             "modules_to_save": ("lm_head",), "trainable_tokens": ("<think>",), "rslora": True, "dora": True},
    "validation": {
        "every_steps": 1, "prompts": 5, "samples": 3, "max_completion_tokens": 16,
    },
    "checkpoints": {
        "every_steps": 4, "interruption_every_s": 3600.0, "keep_last": 3, "keep_best": 2, "mirror": "s3://bucket",
    },
    "distribution": {"strategy": "zero2", "cpu_offload": True},
    "training": {
        "engine": "trl", "attention": "eager",
        "seed": 7, "threads": 2, "timeout_s": 1.0, "grace_s": 5.0,
        "sentinel": {"kl_stop": 3.0}, "lora": None,
    },
}  # fmt: skip
"""Another value for every setting."""
MODELS = {
    "grpo": GRPO, "lora": Lora, "validation": Validation, "checkpoints": Checkpoints,
    "distribution": Distribution, "training": Training,
}  # fmt: skip
ELSEWHERE = {
    "grpo.kind",
    "training.dpo", "training.kto", "training.sft",  # refused by name
    *(f"training.{name}" for name in MODELS if name not in ("lora", "training")),
}  # fmt: skip
TOGETHER = {"distribution.cpu_offload": {"strategy": "fsdp2"}}
"""Settings that are no valid section by themselves."""


WITHOUT_EFFECT = {
    "grpo.kl_stop": "of a training on scores, which it is refused",
    "validation.prompts": "the plan's held-out file is cut to it already",
    "training.threads": "of a training on CPU",
    "training.timeout_s": "the launcher's",
    "training.sentinel": "looks at the rows that come back",
    "training.grace_s": "read when SIGTERM comes: how long a save under way may take",
    "training.engine": "the choice of this engine",
}
"""Settings that change nothing in NeMo RL's configuration, and why that loses nothing."""


def test_every_setting_is_in_the_tables_of_this_test() -> None:
    for section, model in MODELS.items():
        known = {*OTHER[section], *(name.partition(".")[2] for name in ELSEWHERE if name.startswith(f"{section}."))}
        assert set(model.model_fields) == known, section
    assert set(WITHOUT_EFFECT) <= {f"{section}.{field}" for section, fields in OTHER.items() for field in fields}


@pytest.mark.parametrize("name", [f"{section}.{field}" for section, fields in OTHER.items() for field in fields])
def test_every_setting_is_rendered_refused_or_without_effect(name: str, tmp_path: Path) -> None:
    section, field = name.split(".")
    before = said(make_plan(tmp_path))
    change = {**TOGETHER.get(name, {}), field: OTHER[section][field]}
    sections = change if section == "training" else {section: {**SECTIONS[section].model_dump(), **change}}
    try:
        after = said(make_plan(tmp_path, **sections))
    except ValueError as error:
        assert field in str(error), "the refusal names the setting"
        return
    assert (after == before) == (name in WITHOUT_EFFECT)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:Detected call of:UserWarning")  # nothing is trained here
def test_the_schedule_is_linear_to_0_like_the_trainers(tmp_path: Path) -> None:
    import torch

    *chain, last = rendered(make_plan(tmp_path))["policy"]["scheduler"]
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.6)
    made = [getattr(torch.optim.lr_scheduler, c["name"].split(".")[-1])(optimizer, **c["kwargs"]) for c in chain]
    schedule = torch.optim.lr_scheduler.SequentialLR(optimizer, made, last["milestones"])
    rates: list[float] = []
    for _ in range(6):
        rates.append(optimizer.param_groups[0]["lr"])
        schedule.step()
    assert rates == pytest.approx([0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def grpo(**changes: Any) -> dict[str, Any]:
    return {"grpo": {**SECTIONS["grpo"].model_dump(), **changes}}


THREE = {"nodes": 3, "distribution": {"strategy": "fsdp2"}}


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (THREE, "do not split over 3"),
        ({"processes": 2}, "Set fsdp2"),
        ({"checkpoints": {"every_steps": 3}}, "Set a multiple"),
        (grpo(loss_type="dr_grpo"), "dapo, grpo"),
        (grpo(generation="transformers"), "Set vllm_colocate"),
        (grpo(trainer_args={"loss_fn.reference_policy_kl_penalty": 1}), "decided by the recipe"),
        (grpo(trainer_args={"grpo.seed.deep": 1}), "is a value"),
    ],
)
def test_what_it_cannot_express_is_refused(change: dict[str, Any], word: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=re.escape(word)):
        rendered(make_plan(tmp_path, **change))


def test_trainer_args_reach_keys_of_nemo_rl(tmp_path: Path) -> None:
    args = {"policy.generation.vllm_cfg.gpu_memory_utilization": 0.5, "policy.dtensor_cfg.tensor_parallel_size": 2}
    adam = {"policy.optimizer.kwargs.weight_decay": 0.01, "policy.optimizer.kwargs.betas": [0.9, 0.95]}
    tree = rendered(make_plan(tmp_path, **grpo(trainer_args={**args, **adam})))
    assert (
        tree["policy"]["optimizer"]["kwargs"] | {"weight_decay": 0.01, "betas": [0.9, 0.95], "eps": 1e-8}
        == (tree["policy"]["optimizer"]["kwargs"])
    )
    assert tree["policy"]["generation"]["vllm_cfg"] == {"gpu_memory_utilization": 0.5}
    assert tree["policy"]["dtensor_cfg"]["lora_cfg"]["use_triton"] is False


@pytest.mark.shared
@pytest.mark.parametrize("release", ["0.6.0", "0.7.0"])
@pytest.mark.parametrize("name", ["spot_h200_grpo", "eks_workshop", "gke_deepscaler"])
def test_released_engines_know_every_key(name: str, release: str, shared_data: Path, tmp_path: Path) -> None:
    """Of the recipes' own training sections, by the example configuration of that release."""
    folder = shared_data / "nemo-rl" / f"v{release}"
    example, other = ((folder / name).read_text() for name in (Path(EXAMPLE).name, "dpo.yaml"))
    recipe = load(RECIPES / f"{name}.yaml")
    sections = {key: getattr(recipe.training, key) for key in type(recipe.training).model_fields}
    nodes, processes = recipe.compute.nodes, recipe.compute.processes
    plan = make_plan(tmp_path, rewards=recipe.rewards, nodes=nodes, processes=processes, **sections)
    tree = rendered(plan)
    assert unknown_keys(tree, yaml.safe_load(example)) == []
    commented = set(re.findall(r"^\s*#?\s*(\w+):", example + other, re.MULTILINE))
    for part in ("train", "validation", "default"):  # an example shows those of other data sets in comments
        assert set(tree["data"][part] or ()) <= commented


@pytest.mark.parametrize(("name", "title"), [("dpo", "DPO"), ("kto", "KTO"), ("sft", "SFT")])
def test_a_method_without_a_rendering_is_refused_by_name(name: str, title: str, tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    changed = plan.model_copy(update={"method": Training().by_name()[name]})  # pyright: ignore[reportArgumentType]
    with pytest.raises(ValueError, match=f"nemo_rl: {title} is not rendered for NeMo RL. Set training.engine trl"):
        refuse(changed)
