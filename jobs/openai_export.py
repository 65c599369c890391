"""A recipe out of the files of OpenAI's fine-tuning: training and validation files, the job, its step metrics.

The training file is the source, the validation file becomes the suite, and hyperparameters are kept where they mean the
same here. Licence, consent, day and base model are left to a person.
"""

import base64
import csv
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from evals.suites.exported import SuiteItems, TuningFile, items_of, job_of, read_file
from jobs.imports import block, section_of
from pipeline.traces.sources.shapes import at


class TrainedBy(NamedTuple):
    """What the rows of a file are trained by here."""

    method: str
    batch: tuple[str, int]
    """The field of the batch's size, and its default."""
    learning_rate: float
    """Of an adapter, for a multiplier of 1: what OpenAI multiplies is not public."""


TRAINED_BY = {
    "openai_finetune_sft": TrainedBy("sft", ("batch_size", 16), 2e-4),
    "openai_finetune_dpo": TrainedBy("dpo", ("batch_size", 32), 5e-6),
    "openai_finetune_rft": TrainedBy("grpo", ("prompts_per_step", 16), 1e-5),
}
REQUEST = frozenset({"messages", "tools", "functions", "parallel_tool_calls", "response_format"})
VALIDATION = re.compile(r"(?i)(?:^|[^a-z])(?:val|valid|validation|test|eval|dev)(?:[^a-z]|$)")
GRADED = re.compile(r"\{\{\s*item\.([\w.]+)\s*\}\}")
"""What a grader compares answers with."""
HEAD = """\
# Made by pt import openai-export of {folder}: job {id}, a fine-tuned {model}.
# CHANGE what is marked so and what is null; `pt recipe explain FIELD` has every field.
name: {name}
data_root: {root}
base_model:
  name: {base}
  uri: /models/my-open-chat-model # CHANGE: an open model: config.json, *.safetensors, a tokenizer with a chat template
traces:
{source}"""
LACKS = {
    "none": "# CHANGE: a judge never decides alone. Add a suite whose answers are checked, as a guard or target, and\n"
    "# evaluation.judge (docs/evaluation.md).\n",
    "": "# CHANGE: there was no validation file. Write the suite: docs/tutorial.md, section 2.\n",
}


def export(folder: Path, recipe: Path) -> int:
    """Write the recipe and its suite, and print what was made of what; 1 where something was left out. Raises
    ValueError where the files make no recipe."""
    job, root = job_of(folder), Path("data") / recipe.stem
    files = [read_file(path) for path in sorted(folder.glob("*.jsonl"))]
    training, validation = _roles(folder, [each for each in files if each.rows], job)
    if there := [path for path in (recipe, root / "suite.jsonl") if path.exists()]:
        raise ValueError(f"{there[0]} is there already. Name another recipe: --write RECIPE")
    reference = _reference(training, job) if training.format == "openai_finetune_rft" else ""
    suite = items_of(validation.rows, reference) if validation else SuiteItems("none", [], [])
    settings, unmapped = _settings(job, training)
    text = _recipe(training, job, reference, settings, suite, root)
    root.mkdir(parents=True, exist_ok=True)
    lines = (f"{json.dumps(item, ensure_ascii=False)}\n" for item in suite.items)
    (root / "suite.jsonl").write_text("".join(lines), encoding="utf-8")
    recipe.write_text(text, encoding="utf-8")
    faults = [*(fault for each in files for fault in each.faults), *unmapped]
    faults += [f"{validation.path.name}, {fault}" for fault in suite.faults] if validation else ["no validation file"]
    told = [("training", f"{training.path}: {len(training.rows):,} rows for {TRAINED_BY[training.format].method}")]
    told += [("suite", f"{validation.path}: {len(suite.items):,} items, check {suite.check}")] if validation else []
    told += [("metrics", line) for line in _metrics(folder)] + [("left out", fault) for fault in faults]
    print(*(f"{name:<11} {text}" for name, text in told), sep="\n")
    print(f"{recipe} is written. Say what is marked CHANGE or null in it, then: pt validate {recipe}")
    return int(bool(faults))


def _roles(folder: Path, files: Sequence[TuningFile], job: Mapping[str, Any]) -> tuple[TuningFile, TuningFile | None]:
    """The training file and the validation file: as the job names them, else by the words in their names."""
    if others := [each for each in files if each.format not in TRAINED_BY]:
        raise ValueError(f"{others[0].path} is no fine-tuning file but {others[0].format}. Move it away.")
    id = job.get("validation_file")
    validation = [each for each in files if id and id in each.path.name]
    validation = validation or [each for each in files if VALIDATION.search(each.path.stem)]
    training = [each for each in files if each not in validation]
    if len(training) != 1 or len(validation) > 1:
        names = ", ".join(each.path.name for each in files) or "no rows"
        raise ValueError(f"{folder} has {names}. Keep one training file, and one with `valid` in its name.")
    if validation and validation[0].format != training[0].format:
        raise ValueError(f"{validation[0].path.name} is {validation[0].format}, the training {training[0].format}.")
    return training[0], validation[0] if validation else None


def _reference(training: TuningFile, job: Mapping[str, Any]) -> str:
    """The path of the reference in a row for reinforcement: what the job's grader compares with, else the one field
    beside the request. Raises ValueError where it may be several."""
    row = training.rows[0]
    names = set(GRADED.findall(json.dumps(job.get("method"))))
    names = names or {"reference_answer"} & row.keys() or row.keys() - REQUEST
    if len(names) != 1:
        named = ", ".join(sorted(names)) or "nothing"
        raise ValueError(f"{training.path} has {named} beside its messages. Name the answer reference_answer.")
    path = names.pop()
    while isinstance(value := at(row, path), dict) and len(value) == 1:
        path += f".{next(iter(value))}"
    return path


def _settings(job: Mapping[str, Any], training: TuningFile) -> tuple[dict[str, Any], list[str]]:
    """The method's settings, and the hyperparameters that mean nothing here."""
    way, method = TRAINED_BY[training.format], job.get("method") or {}
    typed = method.get(method.get("type"), {})
    given = {**(job.get("hyperparameters") or {}), **typed.get("hyperparameters", {})}
    given = {name: value for name, value in given.items() if value not in (None, "auto")}
    batch, epochs = int(given.pop("batch_size", way.batch[1])), given.pop("n_epochs", 1)
    settings: dict[str, Any] = {
        "steps": max(1, math.ceil(len(training.rows) * epochs / batch)),
        way.batch[0]: batch,
        "learning_rate": way.learning_rate * given.pop("learning_rate_multiplier", 1.0),
        **({"beta": given.pop("beta")} if "beta" in given and way.method == "dpo" else {}),
    }
    unmapped = [f"hyperparameter {name}: {value}" for name, value in given.items()]
    return settings, unmapped + ([f"grader of type {typed['grader'].get('type')}"] if typed.get("grader") else [])


def _metrics(folder: Path) -> Iterator[str]:
    """The last step of each file of step metrics, which may be in base64."""
    for path in sorted(folder.glob("*.csv")):
        content = path.read_bytes()
        content = content if content.startswith(b"step") else base64.b64decode(content)
        rows = [row for row in csv.DictReader(content.decode("utf-8", "replace").splitlines()) if row.get("step")]
        last = ", ".join(f"{name} {value}" for name, value in rows[-1].items() if value) if rows else "empty"
        yield f"{path.name}: {last}"


def _recipe(
    training: TuningFile,
    job: Mapping[str, Any],
    reference: str,
    settings: Mapping[str, Any],
    suite: SuiteItems,
    root: Path,
) -> str:
    way, section = TRAINED_BY[training.format], section_of(training.format, str(training.path))
    if reference:
        section["fields"] = {**section["fields"], "reference": reference}
    named = re.sub(r"[^A-Za-z0-9]+", "-", str(job.get("user_provided_suffix") or "assistant")).strip("-")
    words = {"name": root.name, "root": root, "base": named or "assistant", "source": block(section)}
    job_words = {"folder": training.path.parent, "id": job.get("id", "unknown"), "model": job.get("model", "unknown")}
    seed = {"seed": job["seed"]} if isinstance(job.get("seed"), int) else {}
    rest: dict[str, Any] = {"selection": {"method": way.method}, "training": {way.method: dict(settings), **seed}}
    if way.method == "grpo":
        rest |= {"samples": {"prompts": len(training.rows), "per_prompt": 4}}
        rest |= {"rewards": {"verifier": {"kind": suite.check}}} if suite.check != "none" else {}
    items = {"kind": "items", "name": "validation", "path": f"{root / 'suite.jsonl'}", "check": suite.check}
    judged = {"kind": "judged", "name": "judged", "over": "validation", "role": "target"}
    suites = [items] if suite.check != "none" else [{**items, "role": "report"}, judged]
    lacks = LACKS.get(suite.check if suite.items else "", "")
    gate = yaml.safe_dump({"evaluation": {"suites": suites}}, sort_keys=False)
    return HEAD.format(**words, **job_words) + yaml.safe_dump(rest, sort_keys=False) + lacks + gate
