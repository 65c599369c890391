"""The engine as a process with the exit codes of the contract: `python trainer.py PLAN CHECKOUT`."""

import sys
from pathlib import Path

from pipeline.training.nemo import data
from pipeline.training.nemo.run import run
from pipeline.training.plan import TrainingPlan

# The tokenizer's libraries take longer to import than all the rest to run.
data.tokenizer_of = lambda plan: lambda texts, **_: {"input_ids": [[0] * 68 for _ in texts]}
data.rendered = lambda tokenizer, messages: messages[0]["content"]


def say(line: str) -> None:
    print(f"training: {line}", flush=True)


path, checkout = Path(sys.argv[1]), Path(sys.argv[2])
try:
    plan = TrainingPlan.model_validate_json(path.read_bytes())
    result = run(plan, path.parent, checkout, say, (sys.executable, "-u"))
except ValueError as error:
    print(error, file=sys.stderr)
    sys.exit(64)
path.with_name("result.json").write_text(result.model_dump_json())
