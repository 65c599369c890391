"""What a new user brings: a model of their own, and its traces as Langfuse exports them. Seeded, and small."""

import json
import random
import shutil
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from safetensors.numpy import load_file, save_file

from pipeline.demo import MODEL_DIR
from pipeline.demo.task import mistaken_solution, problems

FIRST = datetime(2026, 1, 5, 9, tzinfo=UTC)
MODEL = "support-assistant-1"


def make_model(folder: Path) -> Path:
    """The embedded model with one tensor changed by a percent: another model, and as small."""
    shutil.copytree(MODEL_DIR, folder)
    tensors = load_file(folder / "model.safetensors")
    first = min(tensors)
    save_file(tensors | {first: tensors[first] * 1.01}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def write_suite(path: Path, items: int = 240, seed: int = 9) -> Path:
    """Questions of the user's own task, none of which is in the traces, with their answers."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ({"prompt": each.prompt, "reference": each.answer} for each in problems(seed, "heldout", items))
    path.write_text(
        "".join(f"{json.dumps(line)}\n" for line in {line["prompt"]: line for line in lines}.values()), encoding="utf-8"
    )
    return path


class Asked(NamedTuple):
    """A question of a user, and what may be answered to it."""

    prompt: str
    answer: str
    right: str
    wrong: str


SUMS = tuple(Asked(p.prompt, p.answer, p.solution, mistaken_solution(p)) for p in problems(5, "train", 160))


def calls(asked: Iterable[Asked] = SUMS) -> Iterator[dict[str, Any]]:
    """Prompts, each answered four times, half of them wrong; nine in ten users agreed to training."""
    draw = random.Random(5)
    moment = FIRST
    for number, each in enumerate(asked):
        for answer in range(4):
            moment += timedelta(minutes=7)
            yield {
                "id": f"{number}-{answer}",
                "time": moment,
                "user": f"user-{draw.randrange(200)}",
                "prompt": each.prompt,
                "completion": each.right if draw.random() < 0.5 else each.wrong,
                "metadata": {"expected_answer": each.answer, "user_consent": draw.random() < 0.9},
            }


def write_langfuse_export(folder: Path, asked: Iterable[Asked] = SUMS) -> Path:
    """`observations_v2/`, a file a day."""
    (folder / "observations_v2").mkdir(parents=True)
    for call in calls(asked):
        row = {
            "id": f"o-{call['id']}",
            "trace_id": f"t-{call['id']}",
            "type": "GENERATION",
            "start_time": f"{call['time']:%Y-%m-%d %H:%M:%S}.000000",
            "user_id": call["user"],
            "provided_model_name": MODEL,
            "level": "DEFAULT",
            "input": json.dumps([{"role": "user", "content": call["prompt"]}]),
            "output": json.dumps({"role": "assistant", "content": call["completion"]}),
            "metadata": {key: str(value).lower() for key, value in call["metadata"].items()},
            "latency": 0.5,
        }
        with (folder / "observations_v2" / f"{call['time']:%Y-%m-%d}.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")
    return folder
