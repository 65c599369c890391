"""The local launcher: the trainer as a child process. `result.json` and the exit code decide, lines are for people. And
what a training by TRL needs on the machine that trains."""

import importlib.util
import os
import signal
import sys
from collections.abc import Callable, Iterable
from importlib.metadata import distributions, requires
from threading import Timer

from packaging.requirements import Requirement

from pipeline.core import layout
from pipeline.core.processes import Child
from pipeline.core.storage import Store
from pipeline.recipe import Recipe, TrainingSettings
from pipeline.recipe.methods import AnyMethod, Method
from pipeline.serving.endpoint import Endpoint
from pipeline.training.journal import PREFIX
from pipeline.training.plan import TrainingPlan
from pipeline.training.result import BLOCKED, BLOCKED_WORDS, NEVER_RETRY, PREEMPTED, TrainingResult

TRAINS = ("torch", "transformers", "trl", "peft", "accelerate", "datasets")
"""What the extra `train` has."""
GPU = ("vllm", "bitsandbytes", "deepspeed")
"""What the extra `gpu` has."""
FLASH = {"flash_attention_2": "flash_attn", "flash_attention_3": "flash_attn_interface"}
"""The package of an implementation of attention."""


class TrainingRefused(ValueError):
    """The trainer will never run this plan (exit 64 or 65); the message says what to change. A retry cannot help."""


def train(
    store: Store, plan: TrainingPlan, timeout_s: float, log: Callable[[str], None], judge: Endpoint | None = None
) -> TrainingResult | None:
    """Train a published plan to its end, resuming what earlier attempts left; None when the plan is not to train.
    `judge`: where the judge listens that scores completions, for a plan that asks one; None: as the environment says.
    Raises TrainingRefused, or RuntimeError for a pre-emption or a crash that a retry may get past."""
    if plan.decision.method == "none":
        return None
    if plan.nodes > 1:
        raise TrainingRefused(
            f"The plan has {plan.nodes} nodes, and this launcher starts one. Set compute.nodes to 1, or give the "
            "recipe a compute.kubernetes section."
        )
    name = layout.iteration(plan.iteration)
    existing = store.read(f"{name}/{layout.RESULT}", TrainingResult)
    if existing is not None:
        return existing
    command = [sys.executable, "-m", "pipeline.training", str(store.path(name, layout.PLAN))]
    command += ["--parent", str(os.getpid())]
    variables = {"JUDGE_URL": judge.url, "JUDGE_API_KEY": judge.api_key} if judge is not None else {}
    with Child(command, plan.training.grace_s, environment=variables) as child:  # a cancelled step saves a checkpoint
        watchdog = Timer(timeout_s, child.end)
        watchdog.daemon = True
        watchdog.start()
        try:
            for line in child.lines():
                if line.startswith(PREFIX):
                    log(line.rstrip())
            code = child.wait()
        finally:
            watchdog.cancel()
    tail = "\n".join(child.tail)
    if code == BLOCKED:
        raise TrainingRefused(f"The training was blocked: {BLOCKED_WORDS}")
    if code == NEVER_RETRY:
        raise TrainingRefused(f"The trainer refuses the plan:\n{tail}")
    result = store.read(f"{name}/{layout.RESULT}", TrainingResult)
    if result is not None:  # also when the signal came after the work was done
        return result
    if code in (PREEMPTED, -signal.SIGTERM):
        raise RuntimeError("Training was pre-empted after a checkpoint. Run it again: it resumes there.")
    raise RuntimeError(f"Training ended with exit code {code}. Run it again to resume. Its last lines:\n{tail}")


def training_faults(recipe: Recipe, methods: Iterable[Method]) -> list[str]:
    """Why a training by one of these methods could not begin, one line each with what to do."""
    training = recipe.training
    if training.engine == "nemo_rl":
        from pipeline.training.nemo.render import recipe_faults  # chat templates, which most recipes need not load here

        return recipe_faults(recipe, methods)
    if recipe.compute.kubernetes is not None:
        return []
    if absent := [name for name in TRAINS if not _is_installed(name)]:
        return [
            f"training: this environment lacks {', '.join(absent)}. Install preference-tuning[train], torch first "
            "(pip install -c constraints/cpu.txt torch), or train on a cluster (compute.kubernetes)."
        ]
    return missing_packages(training, methods)


def missing_packages(training: TrainingSettings, methods: Iterable[Method]) -> list[str]:
    """The packages that these settings need and this environment lacks, one line each with what to do."""
    needed: dict[str, str] = {}
    if any(getattr(method, "generation", "transformers") != "transformers" for method in methods):
        needed["vllm"] = "training.grpo.generation to transformers"
    if training.lora is not None and training.lora.quantise == "nf4":
        needed["bitsandbytes"] = "training.lora.quantise to none"
    if training.distribution.strategy.startswith("zero"):
        needed["deepspeed"] = "training.distribution.strategy to fsdp2"
    if training.attention in FLASH:
        needed[FLASH[training.attention]] = "training.attention to null"
    return [
        f"training: {fault}. Install {'preference-tuning[gpu]' if package in GPU else 'it'} on a machine with a GPU, "
        f"or set {instead}."
        for package, instead in needed.items()
        if (fault := _package_fault(package))
    ]


def possible_methods(recipe: Recipe) -> list[AnyMethod]:
    """Those that may be trained: the recipe's one, or whichever the evidence will choose."""
    by_name, chosen = recipe.training.by_name(), recipe.selection.method
    return list(by_name.values()) if chosen == "auto" else [by_name[chosen]]


def _package_fault(package: str) -> str:
    """That a package is absent, or of a version that TRL's own metadata rules out; "" where neither holds."""
    if not _is_installed(package):
        return f"this environment lacks {package}"
    taken = [named.specifier for named in map(Requirement, requires("trl") or []) if named.name == package]
    for found in distributions(name=package):
        if not all(found.version in versions for versions in taken):
            return f"this environment has {package} {found.version}, and TRL takes {' and '.join(map(str, taken))}"
    return ""


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
