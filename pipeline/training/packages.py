"""The packages and the compiler that a training by TRL needs on the machine that trains, and which are missing."""

import importlib.util
import shutil
from collections.abc import Iterable

from pipeline.recipe import Recipe
from pipeline.recipe.methods import Method

TRAINS = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
"""What the extra `train` has; the others are in `gpu`."""
COMPILER = "c++"
"""What torch's cpp_extension calls."""


def missing_packages(recipe: Recipe, methods: Iterable[Method]) -> list[str]:
    """Why a training by one of these methods could not begin here, one line each with what to do."""
    training = recipe.training
    if recipe.compute.kubernetes is not None or training.engine != "trl":
        return []
    if absent := [name for name in TRAINS if not _is_installed(name)]:
        return [
            f"training: this environment lacks {', '.join(absent)}. Install preference-tuning[train], torch first "
            "(pip install -c constraints/cpu.txt torch), or train on a cluster (compute.kubernetes)."
        ]
    needed = {package: field for method in methods for package, field in method.packages.items()}
    if training.lora is not None and training.lora.quantise == "nf4":
        needed["bitsandbytes"] = "training.lora.quantise to none"
    if training.distribution.strategy.startswith("zero"):
        needed["deepspeed"] = "training.distribution.strategy to fsdp2"
    missing = [
        f"training: this environment lacks {package}. Install preference-tuning[gpu] on a machine with a GPU, or set "
        f"{instead}."
        for package, instead in needed.items()
        if not _is_installed(package)
    ]
    if "deepspeed" in needed and training.distribution.cpu_offload and shutil.which(COMPILER) is None:
        missing.append(
            f"training: DeepSpeed compiles its optimizer for the host's memory, and there is no {COMPILER} on PATH. "
            "Install a C++ compiler, or set training.distribution.cpu_offload to false."
        )
    return missing


def possible_methods(recipe: Recipe) -> list[Method]:
    """Those that may be trained: the recipe's one, or whichever the evidence will choose."""
    by_name, chosen = recipe.training.by_name(), recipe.selection.method
    return list(by_name.values()) if chosen == "auto" else [by_name[chosen]]


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
