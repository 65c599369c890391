"""From a checkpoint of NeMo RL to a model directory and its adapter. LoRA is merged here: NeMo RL's converters merge
Megatron checkpoints only. Weights that are missing or not finite are an error."""

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.core.model_files import adapter_config
from pipeline.core.storage import CheckpointRef
from pipeline.training.nemo.output import ADAPTER, WEIGHTS, SavedCheckpoint
from pipeline.training.nemo.render import conversion
from pipeline.training.plan import TrainingPlan
from pipeline.training.weights import publish_weights


def export(
    plan: TrainingPlan, saved: SavedCheckpoint, folder: Path, step: int, checkout: Path, python: Sequence[str]
) -> CheckpointRef:
    """Publish `adapter` and `model` in `folder`; without LoRA the one reference stands for both. `step`: in optimizer
    steps. Raises RuntimeError when the conversion fails, ValueError for weights that don't fit."""
    if plan.training.lora is None:
        model = publish_weights(folder / "model", lambda staging: _converted(plan, saved, staging, checkout, python))
        return CheckpointRef(adapter=model, model=model, step=step)
    source = saved.folder / WEIGHTS

    def copy(staging: Path) -> None:
        for name in ADAPTER:
            shutil.copy2(source / name, staging)
        _tokenizer(plan).save_pretrained(staging)

    return CheckpointRef(
        adapter=publish_weights(folder / "adapter", copy),
        model=publish_weights(folder / "model", lambda staging: _merged(plan, source, staging)),
        step=step,
    )


def _merged(plan: TrainingPlan, source: Path, staging: Path) -> None:
    from peft import PeftConfig, get_peft_model, set_peft_model_state_dict
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    base: Any = AutoModelForCausalLM.from_pretrained(plan.base.uri, dtype="auto")
    adapter_config(source)  # refuses what PEFT would import for it
    model: Any = get_peft_model(base, PeftConfig.from_pretrained(str(source)))
    loaded: Any = set_peft_model_state_dict(model, load_file(source / ADAPTER[1]))
    missing = [name for name in loaded.missing_keys if "lora_" in name]
    _refuse_gaps(source, missing, loaded.unexpected_keys)
    _save(plan, model.merge_and_unload(), source, staging)


def _converted(
    plan: TrainingPlan, saved: SavedCheckpoint, staging: Path, checkout: Path, python: Sequence[str]
) -> None:
    from transformers import AutoModelForCausalLM

    out = staging.with_name(".hf")
    shutil.rmtree(out, ignore_errors=True)  # the converter refuses to replace one
    command = conversion(plan, str(saved.folder), str(out), python)
    done = subprocess.run(command, cwd=checkout, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-20:])
        raise RuntimeError(f"{' '.join(command)} ended with {done.returncode}. Its last lines:\n{tail}")
    loaded: Any = AutoModelForCausalLM.from_pretrained(out, dtype="auto", output_loading_info=True)
    model, loading_info = loaded
    _refuse_gaps(out, loading_info["missing_keys"], loading_info["unexpected_keys"])
    _save(plan, model, out, staging)
    shutil.rmtree(out)


def _refuse_gaps(source: Path, missing: Sequence[str], unexpected: Sequence[str]) -> None:
    gaps = {"are missing": sorted(missing), "don't belong": sorted(unexpected)}
    if problems := [f"{len(names)} {what}, such as {names[0]}" for what, names in gaps.items() if names]:
        raise ValueError(f"The weights in {source} are not the model's: {'; '.join(problems)}. Train on the same base.")


def _save(plan: TrainingPlan, model: Any, source: Path, staging: Path) -> None:
    broken = next((name for name, value in model.state_dict().items() if not bool(value.isfinite().all())), None)
    if broken is not None:
        raise ValueError(f"{broken} in {source} is not finite: the training diverged. Lower the learning rate.")
    model.save_pretrained(staging)
    _tokenizer(plan).save_pretrained(staging)


def _tokenizer(plan: TrainingPlan) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(plan.base.uri)
