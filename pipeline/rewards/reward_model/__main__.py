"""The reward model's own process: `train JOB PARENT`, or `score FOLDER BATCH_SIZE THREADS PARENT`.

`train` exits with 0 once `trained.json` is there, with 64 where no retry can help; `score` answers line by line.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from pipeline.core.processes import die_with_parent
from pipeline.core.redaction import guard_output
from pipeline.rewards.reward_model.records import NEVER_RETRY, PREFIX, RewardModelJob, result_file
from pipeline.rewards.reward_model.scorer import AnsweredChat

ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS may sum in another order each time
}


def train(path: Path) -> int:
    job = RewardModelJob.model_validate_json(path.read_bytes())
    _prepare(job.settings.threads)
    import pyarrow.parquet as pq

    from pipeline.core.storage import write_atomically
    from pipeline.rewards.reward_model.network import InvalidBase
    from pipeline.rewards.reward_model.network import train as train_network

    def emit(line: str) -> None:
        print(f"{PREFIX}{line}", flush=True)

    try:
        rows = pq.read_table(job.rows).to_pylist()
        outcome = train_network(job.base, rows, job.settings, Path(job.target), emit)
    except InvalidBase as error:
        print(error, file=sys.stderr)
        return NEVER_RETRY
    write_atomically(result_file(path), outcome.model_dump_json() + "\n")
    return 0


def score(folder: Path, batch_size: int, threads: int) -> int:
    # What libraries print goes to the errors: the output is for the findings alone.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    _prepare(threads)
    from pipeline.rewards.reward_model.network import InvalidBase, RewardModel, make_deterministic

    make_deterministic(0, threads)
    try:
        model = RewardModel.load(folder)
    except InvalidBase as error:
        print(error, file=sys.stderr)
        return NEVER_RETRY
    sys.stdin.reconfigure(encoding="utf-8")  # pyright: ignore[reportAttributeAccessIssue]
    for line in sys.stdin:
        completions = [AnsweredChat(*each) for each in json.loads(line)]
        out.write(json.dumps(model.score(completions, batch_size)) + "\n")
        out.flush()
    return 0


def _prepare(threads: int) -> None:
    """Before torch is imported."""
    os.environ.update(ENVIRONMENT, OMP_NUM_THREADS=str(threads))


if __name__ == "__main__":
    what, *given, parent = sys.argv[1:]
    guard_output()
    die_with_parent(parent=int(parent))
    if what == "train":
        sys.exit(train(Path(given[0])))
    sys.exit(score(Path(given[0]), int(given[1]), int(given[2])))
