"""The reward model's own process. `train THREADS PARENT` reads a job on its input, and prints its progress and then the
outcome; `score THREADS PARENT FOLDER BATCH_SIZE` answers line by line. Either exits with 64 where no retry can help."""

import json
import os
import sys
from typing import IO

from pipeline.core.processes import die_with_parent
from pipeline.core.redaction import guard_output
from pipeline.rewards.reward_model.records import NEVER_RETRY, AnsweredChat, RewardModelJob

ENVIRONMENT = {
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS may sum in another order each time
}


def main(threads: str, scored: list[str], out: IO[str]) -> None:
    """`scored`: folder and batch size, empty to train."""
    os.environ.update(ENVIRONMENT, OMP_NUM_THREADS=threads)  # before torch is imported
    from pipeline.rewards.reward_model.network import InvalidBase, RewardModel, make_deterministic, train

    sys.stdin.reconfigure(encoding="utf-8")  # pyright: ignore[reportAttributeAccessIssue]
    make_deterministic(int(threads))
    try:
        if not scored:
            outcome = train(
                RewardModelJob.model_validate_json(sys.stdin.readline()), lambda line: print(line, file=out)
            )
            print(outcome.model_dump_json(), file=out)
            return
        model = RewardModel.load(scored[0])
    except InvalidBase as error:
        print(error, file=sys.stderr)
        sys.exit(NEVER_RETRY)
    for line in sys.stdin:
        completions = [AnsweredChat(*each) for each in json.loads(line)]
        print(json.dumps(model.score(completions, int(scored[1]))), file=out)


if __name__ == "__main__":
    guard_output()
    die_with_parent(parent=int(sys.argv[3]))
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to the errors
    main(sys.argv[2], sys.argv[4:], answers)
