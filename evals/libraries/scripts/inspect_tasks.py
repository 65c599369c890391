"""Lists and runs a task of Inspect against a server. Runs where inspect_ai is, and imports nothing of ours.

Inspect has one seed for all answers of a run, under which every epoch of an item would be the same answer. Here each
answer gets its own: from the run's seed, the sample's id and the epoch, and so the same for every model.
"""

# pyright: basic, reportMissingImports=false

import contextvars
import hashlib
import importlib.metadata
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

from start import Refusal

ROLES = ("system", "user", "assistant")
MARKS = ("cluster", "slice")
"""Keys of a sample's metadata that are read."""


class SeedSource:
    """The seeds of one sample's calls to the model, in their order."""

    current: contextvars.ContextVar["SeedSource"] = contextvars.ContextVar("current")

    def __init__(self, seed: int, sample: object, epoch: int) -> None:
        self.name, self.calls = f"{seed}/{sample}/{epoch - 1}", 0

    def next(self) -> int:
        name = f"{self.name}/{self.calls}" if self.calls else self.name
        self.calls += 1
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4]) >> 1


def version() -> str:
    return importlib.metadata.version("inspect_ai")


def listing(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Each sample of the task's dataset: id, messages, target, metadata. `spec`: of the task: file, name, args."""
    return [
        {
            "id": str(sample.id),
            "messages": _messages(sample),
            "target": sample.target if isinstance(sample.target, str) else "\n".join(sample.target),
            "metadata": {key: str(value) for key, value in (sample.metadata or {}).items() if key in MARKS},
        }
        for sample in _dataset(_task(**spec))
    ]


def run(
    spec: dict[str, Any], server: dict[str, Any], plan: dict[str, Any], sample_ids: list[str], log_folder: str
) -> str:
    """Run the task and return the path of its log, in JSON.

    `spec`: of the task: file, name, args. `server`: url, api_key, model, extra. `plan`: samples, temperature,
    max_tokens, seed, and in_flight, timeout_s, attempts of the server.
    """
    import inspect_ai
    from inspect_ai import task_with
    from inspect_ai.model import GenerateConfig, get_model

    task = _task(**spec)
    chosen = [sample.id for sample in _dataset(task) if str(sample.id) in set(sample_ids)]
    setup = task.setup if isinstance(task.setup, list) else [task.setup] if task.setup else []
    task = task_with(task, setup=[_seeds(plan["seed"]), *setup])
    model = get_model(
        f"openai-api/engine/{server['model']}",
        base_url=server["url"],
        api_key=server["api_key"] or "none",
        config=GenerateConfig(
            max_connections=plan["in_flight"],
            max_retries=plan["attempts"] - 1,
            attempt_timeout=max(1, round(plan["timeout_s"])),
            extra_body=server["extra"] or None,
        ),
        memoize=False,
    )
    _ask_as_planned(model, plan)
    (log,) = inspect_ai.eval(
        task,
        model=model,
        sample_id=chosen,
        epochs=plan["samples"],
        temperature=plan["temperature"],
        max_tokens=plan["max_tokens"],
        seed=plan["seed"],
        fail_on_error=False,
        max_samples=plan["in_flight"],
        display="none",
        log_dir=log_folder,
        log_format="json",
        log_realtime=False,
    )
    return str(Path(log.location.removeprefix("file://")))


def _task(file: str, name: str, args: dict[str, Any]) -> Any:
    """The task, made by its function in the file, whose folder is the working directory as Inspect has it."""
    os.chdir(Path(file).parent)
    sys.path.insert(0, str(Path(file).parent))
    spec = importlib.util.spec_from_file_location(Path(file).stem, file)
    if spec is None or spec.loader is None:
        raise Refusal(f"{file} is no Python file. Name the task as FILE.py@NAME.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    if not callable(getattr(module, name, None)):
        marks = {key: getattr(value, "__registry_info__", None) for key, value in vars(module).items()}
        tasks = ", ".join(sorted(key for key, mark in marks.items() if getattr(mark, "type", "") == "task"))
        raise Refusal(f"{file} has no task {name} (it has {tasks or 'none'}). Name the task as FILE.py@NAME.")
    return getattr(module, name)(**args)


def _dataset(task: Any) -> list[Any]:
    """The samples; those without an id get the number that Inspect will give them."""
    samples = list(task.dataset)
    for number, sample in enumerate(samples, start=1):
        if sample.id is None:
            sample.id = number
    return samples


def _messages(sample: Any) -> list[dict[str, str]]:
    if isinstance(sample.input, str):
        return [{"role": "user", "content": sample.input}]
    messages = []
    for each in sample.input:
        if each.role not in ROLES or not isinstance(each.content, str):
            raise Refusal(f"Sample {sample.id} holds more than texts of {', '.join(ROLES)}: take it out of the task.")
        messages.append({"role": each.role, "content": each.content})
    return messages


def _seeds(seed: int) -> Any:
    from inspect_ai.solver import solver

    @solver(name="seed_per_answer")
    def seed_per_answer() -> Any:
        async def solve(state: Any, generate: Any) -> Any:
            SeedSource.current.set(SeedSource(seed, state.sample_id, state.epoch))
            return state

        return solve

    return seed_per_answer()


def _ask_as_planned(model: Any, plan: dict[str, Any]) -> None:
    """Whatever a task asks for: temperature and length limit are the recipe's, as they are for every other suite."""
    generate = model.api.generate

    async def as_planned(input: Any, tools: Any, tool_choice: Any, config: Any, **more: Any) -> Any:
        planned = {"temperature": plan["temperature"], "max_tokens": plan["max_tokens"], "top_p": 1.0}
        planned["seed"] = SeedSource.current.get().next()
        return await generate(input, tools, tool_choice, config.model_copy(update=planned), **more)

    model.api.generate = as_planned
