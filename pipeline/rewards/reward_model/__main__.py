"""The reward model's own process: `train JOB PARENT` prints its progress, `score FOLDER BATCH_SIZE THREADS PARENT`
answers line by line. Either exits with 64 where no retry can help."""

import json
import os
import sys
from pathlib import Path
from typing import IO

from pipeline.core.processes import die_with_parent
from pipeline.core.redaction import guard_output
from pipeline.core.storage import write_atomically
from pipeline.rewards.reward_model.records import NEVER_RETRY, RESULT_FILE, RewardModelJob
from pipeline.rewards.reward_model.scorer import AnsweredChat

ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS may sum in another order each time
}


def main(what: str, given: list[str], out: IO[str]) -> None:
    job = RewardModelJob.model_validate_json(Path(given[0]).read_bytes()) if what == "train" else None
    threads = int(given[2]) if job is None else job.settings.threads
    os.environ.update(ENVIRONMENT, OMP_NUM_THREADS=str(threads))  # before torch is imported
    from pipeline.rewards.reward_model.network import InvalidBase, RewardModel, make_deterministic, train

    try:
        if job is not None:
            outcome = train(job, lambda line: print(line, file=out, flush=True))
            write_atomically(Path(given[0]).with_name(RESULT_FILE), outcome.model_dump_json() + "\n")
            return
        make_deterministic(0, threads)
        model = RewardModel.load(Path(given[0]))
    except InvalidBase as error:
        print(error, file=sys.stderr)
        sys.exit(NEVER_RETRY)
    sys.stdin.reconfigure(encoding="utf-8")  # pyright: ignore[reportAttributeAccessIssue]
    for line in sys.stdin:
        completions = [AnsweredChat(*each) for each in json.loads(line)]
        print(json.dumps(model.score(completions, int(given[1]))), file=out, flush=True)


if __name__ == "__main__":
    command, *arguments, parent = sys.argv[1:]
    guard_output()
    die_with_parent(parent=int(parent))
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to the errors
    main(command, arguments, answers)
