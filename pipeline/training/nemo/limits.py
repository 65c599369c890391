"""What NeMo RL cannot express, as far as the recipe's sections tell: known before samples and labels are paid for. Run
as a program, whether the checkout in `CHECKOUT` is of a release that is known."""

import re
import sys
from pathlib import Path

from pipeline.recipe import TrainingSettings
from pipeline.recipe.methods import GRPO, Method

CHECKOUT = "/opt/nemo-rl"
"""Where NVIDIA's container has it."""
EXAMPLE = "examples/configs/grpo_math_1B.yaml"
"""In the checkout; its keys are inherited."""
STATED = "nemo_rl/package_info.py"
RELEASES = ("0.6.0", "0.7.0")
PEFT = ("modules_to_save", "trainable_tokens", "rslora", "dora")
"""Fields of `lora` that TRL alone takes."""
LOSSES = {"dapo": True, "grpo": False}
"""Our `loss_type` to NeMo RL's `token_level_loss`."""
DEVICES = [f"policy.generation.colocated.resources.{name}" for name in ("gpus_per_node", "num_nodes")]
"""What a generation on devices of its own has to name."""
ONE_BY_ONE = ("policy.generation.vllm_cfg.async_engine", "grpo.async_grpo.enabled")


def checkout_fault(checkout: Path) -> str | None:
    """Why no training can begin from this checkout of NeMo RL, with what to do; None where it can."""
    if absent := [name for name in (EXAMPLE, STATED) if not (checkout / name).is_file()]:
        return f"No NeMo RL in {checkout}: {absent[0]} is missing. Give the path of a checkout of NVIDIA-NeMo/RL."
    stated = (checkout / STATED).read_text(encoding="utf-8")
    release = ".".join(re.findall(r"(?m)^(?:MAJOR|MINOR|PATCH) *= *(\d+)", stated))
    if release not in RELEASES:
        return f"The NeMo RL in {checkout} is release {release}. Check out {' or '.join(RELEASES)}."
    return None


def limits(training: TrainingSettings, method: Method, devices: int, looks: bool) -> list[str]:
    """What it cannot express of these settings, one line each with what to change. `looks`: held-out prompts are
    answered during the training."""
    if not isinstance(method, GRPO):
        return [
            f"training.engine nemo_rl: {method.title} is not rendered for NeMo RL. Set training.engine trl, or "
            "selection.method grpo."
        ]
    lora, strategy = training.lora, training.distribution.strategy
    unfit = {
        **{f"lora.{name}: only TRL takes it. Leave it out.": bool(getattr(lora, name, 0)) for name in PEFT},
        f"attention {training.attention!r}: NeMo RL decides it. Set null.": training.attention is not None,
        f"lora.quantise {lora and lora.quantise!r}: its LoRA trains on an unquantised base. Set none.": (
            lora is not None and lora.quantise != "none"
        ),
        f"lora.target_modules {lora and lora.target_modules!r}: it knows other patterns. Set all-linear.": (
            lora is not None and lora.target_modules != "all-linear"
        ),
        f"distribution.strategy {strategy!r}: its DTensor backend shards everything. Set fsdp2.": (
            strategy == "zero2" or (strategy == "ddp" and devices > 1)
        ),
        "checkpoints.interruption_every_s: it saves every so many steps. Unset it, and set every_steps.": (
            training.checkpoints.interruption_every_s is not None
        ),
        "checkpoints.mirror: it copies nothing. Unset it, and put data_root on a shared volume.": (
            training.checkpoints.mirror is not None
        ),
        **_of_grpo(method, devices),
        **(_of_validation(training, method) if looks else {}),
    }
    return [f"training.{text}" for text, wrong in unfit.items() if wrong]


def _of_grpo(grpo: GRPO, devices: int) -> dict[str, bool]:
    return {
        f"grpo.loss_type {grpo.loss_type!r}: set one of {', '.join(LOSSES)}.": grpo.loss_type not in LOSSES,
        "grpo.generation 'transformers': it draws completions with vLLM. Set vllm_colocate.": (
            grpo.generation == "transformers"
        ),
        f"grpo.generation 'vllm_server': give it devices, in trainer_args {' or '.join(DEVICES)}.": (
            grpo.generation == "vllm_server" and not any(key in grpo.trainer_args for key in DEVICES)
        ),
        f"grpo: {grpo.examples_per_update} completions an update do not split over {devices} devices.": (
            grpo.examples_per_update % devices != 0
        ),
        **{
            f"grpo.trainer_args {key!r}: completions would be scored one by one, and one that abstains has no group. "
            "Leave it out.": bool(grpo.trainer_args.get(key))
            for key in ONE_BY_ONE
        },
    }


def _of_validation(training: TrainingSettings, grpo: GRPO) -> dict[str, bool]:
    validation = training.validation
    save, look = (grpo.batches_in(each.every_steps) for each in (training.checkpoints, validation))
    return {
        f"validation.max_completion_tokens {validation.max_completion_tokens}: it validates as it trains. Set "
        f"{grpo.max_completion_tokens} as in grpo.": validation.max_completion_tokens != grpo.max_completion_tokens,
        f"grpo.temperature {grpo.temperature}: held-out answers would be drawn at it too. Set 1.0.": (
            grpo.temperature != 1.0
        ),
        f"checkpoints.every_steps: a checkpoint every {save} batches of generation is not one in every {look}, when "
        "held-out prompts are asked, and would have no accuracy. Set a multiple.": save % look != 0,
    }


if __name__ == "__main__":
    sys.exit(checkout_fault(Path(CHECKOUT)))
