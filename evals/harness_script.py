"""Lists or runs a task of lm-evaluation-harness: `python -I harness_script.py REQUEST REPLY`, both files of JSON. The
key of the server is OPENAI_API_KEY. Imports nothing of this project."""

# pyright: basic, reportMissingImports=false

import importlib.metadata
import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import lm_eval
from lm_eval.models.openai_completions import LocalChatCompletion
from lm_eval.tasks import TaskManager, get_task_dict


def main(request: str, reply: str) -> None:
    """`request`: `file` of the task and its `args`; to ask a server also `server`, `gen_kwargs` and `ids`."""
    asked, reply_file = json.loads(Path(request).read_text()), Path(reply).absolute()
    file = Path(asked["file"])
    os.chdir(file.parent)  # its data lie there
    named = re.search(r"^task:\s*['\"]?([\w.-]+)", file.read_text(), re.MULTILINE)
    if named is None:
        sys.exit(f"{file} has no line `task: NAME`. Give the file of one task.")
    manager = TaskManager(include_path=str(file.parent), include_defaults=False)
    tasks = [{"task": named[1], **asked["args"]}] if asked["args"] else [named[1]]
    task = get_task_dict(tasks, manager)[named[1]]
    if task.OUTPUT_TYPE != "generate_until":
        sys.exit(f"{file} asks for {task.OUTPUT_TYPE}; a chat server only generates. Set output_type: generate_until.")
    rows = listed(task) if "server" not in asked else answered(asked, named[1], task, tasks, manager)
    reply_file.write_text(json.dumps({"lm_eval": importlib.metadata.version("lm_eval"), "rows": rows}))


def listed(task: Any) -> list[dict[str, Any]]:
    return [
        {
            "id": str(number),
            "prompt": task.doc_to_text(doc),
            "target": str(task.doc_to_target(doc)),
            **{key: str(doc[key]) for key in ("cluster", "slice") if key in doc},
        }
        for number, doc in enumerate(task.eval_docs)
    ]


def answered(asked: dict[str, Any], name: str, task: Any, tasks: list[Any], manager: Any) -> list[dict[str, Any]]:
    header = {"Authorization": f"Bearer {os.environ.get('OPENAI_API_KEY') or 'none'}"}
    done = lm_eval.simple_evaluate(
        model=LocalChatCompletion(header=header, **asked["server"]),
        tasks=tasks,
        task_manager=manager,
        samples={name: [int(id) for id in asked["ids"]]},
        apply_chat_template=True,
        gen_kwargs=asked["gen_kwargs"],
        bootstrap_iters=0,
        log_samples=True,
    )
    return [
        {
            "id": str(each["doc_id"]),
            "prompt": task.doc_to_text(each["doc"]),
            "target": str(each["target"]),
            "filter": each["filter"],
            "response": each["resps"][0][0],
            "answer": each["filtered_resps"][0],
            "metrics": {metric: float(each[metric]) for metric in each["metrics"]},
        }
        for each in done["samples"][name]
    ]


if __name__ == "__main__":
    main(*sys.argv[1:])
