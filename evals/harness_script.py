"""Lists and runs a task of lm-evaluation-harness against a server: `python -I harness_script.py` where lm_eval is.

One line of JSON on the input names a function and its arguments; the output is the reply, what libraries print goes to
the errors. When the input closes, the caller is gone, and this process ends. Imports nothing of this project.
"""

# pyright: basic, reportMissingImports=false

import importlib.metadata
import json
import os
import re
import sys
import threading
from pathlib import Path
from typing import Any


class Refusal(Exception):
    """What its reader can mend, said in whole sentences; a traceback would say nothing more."""


def version() -> str:
    return importlib.metadata.version("lm_eval")


def listing(spec: dict[str, Any]) -> list[dict[str, Any]]:
    """Each document that the task asks about: id, messages, target, metadata. `spec`: of the task: file, args."""
    task = _task(**spec)
    if task.OUTPUT_TYPE != "generate_until":
        raise Refusal(
            f"{spec['file']} asks for {task.OUTPUT_TYPE}, and a server that speaks chat completions only generates. "
            "Set output_type: generate_until."
        )
    return [
        {
            "id": str(number),
            "messages": [{"role": "user", "content": task.doc_to_text(doc)}],
            "target": str(task.doc_to_target(doc)),
            "metadata": {key: str(doc[key]) for key in ("cluster", "slice") if key in doc},
        }
        for number, doc in enumerate(task.eval_docs)
    ]


def run(spec: dict[str, Any], server: dict[str, Any], plan: dict[str, Any], sample_ids: list[str]) -> dict[str, Any]:
    """Run the task and return its samples: `lm_eval`, and a list of `samples`.

    `spec`: of the task: file, args. `server`: url, api_key, model, extra. `plan`: temperature, max_tokens, seed, and
    in_flight, timeout_s, attempts of the server.
    """
    import lm_eval
    from lm_eval.models.openai_completions import LocalChatCompletion

    name, tasks = _named(spec["file"])
    model = LocalChatCompletion(
        base_url=f"{server['url'].rstrip('/')}/chat/completions",
        model=server["model"],
        header={"Authorization": f"Bearer {server['api_key'] or 'none'}"},
        num_concurrent=plan["in_flight"],
        max_retries=plan["attempts"],
        timeout=max(1, round(plan["timeout_s"])),
        seed=plan["seed"],
    )
    done = lm_eval.simple_evaluate(
        model=model,
        tasks=[{"task": name, **spec["args"]}] if spec["args"] else [name],
        task_manager=tasks,
        samples={name: [int(id) for id in sample_ids]},
        apply_chat_template=True,
        gen_kwargs={
            "temperature": plan["temperature"],
            "do_sample": plan["temperature"] > 0,
            "top_p": 1.0,
            "max_gen_toks": plan["max_tokens"],
            **server["extra"],
        },
        bootstrap_iters=0,
        log_samples=True,
    )
    task = _task(**spec)
    samples = [
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
    return {"lm_eval": version(), "samples": samples}


def _named(file: str) -> tuple[str, Any]:
    """The task's name, and what finds it and the tasks beside it. Its folder becomes the working directory."""
    from lm_eval.tasks import TaskManager

    os.chdir(Path(file).parent)
    named = re.search(r"^task:\s*['\"]?([\w.-]+)", Path(file).read_text(), re.MULTILINE)
    if named is None:
        raise Refusal(f"{file} has no line `task: NAME`. Give the file of one task.")
    return named.group(1), TaskManager(include_path=str(Path(file).parent), include_defaults=False)


def _task(file: str, args: dict[str, Any]) -> Any:
    from lm_eval.tasks import get_task_dict

    name, tasks = _named(file)
    return get_task_dict([{"task": name, **args}] if args else [name], tasks)[name]


def _end_with_caller(descriptor: int) -> None:
    while os.read(descriptor, 4096):
        pass
    os._exit(3)


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # A descriptor of its own: the line may be long, and a library may close or read the standard input.
    descriptor = os.dup(0)
    line = b""
    while not line.endswith(b"\n"):
        block = os.read(descriptor, 1 << 20)
        if not block:
            sys.exit("the caller is gone")
        line += block
    threading.Thread(target=_end_with_caller, args=(descriptor,), daemon=True).start()
    request = json.loads(line)
    function = {"version": version, "listing": listing, "run": run}[request["function"]]
    try:
        reply = {"result": function(**request["arguments"])}
    except Refusal as refusal:
        reply = {"refused": str(refusal)}
    print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
