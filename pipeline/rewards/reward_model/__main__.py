"""The reward model's own process. `train PARENT` reads a job on its input, and prints its progress and then the
outcome; `score PARENT FOLDER` answers line by line. Either exits with 64 where no retry can help."""

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
    "OMP_NUM_THREADS": "1",
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",  # without it cuBLAS may sum in another order each time
}


def main(what: str, folder: str, out: IO[str]) -> None:
    os.environ.update(ENVIRONMENT)  # before torch is imported
    from pipeline.rewards.reward_model.network import InvalidBase, RewardModel, make_deterministic, train

    make_deterministic()
    try:
        if what == "train":
            job = RewardModelJob.model_validate_json(sys.stdin.readline())
            print(train(job, lambda line: print(line, file=out)).model_dump_json(), file=out)
            return
        model = RewardModel.load(folder)
    except InvalidBase as error:
        print(error, file=sys.stderr)
        sys.exit(NEVER_RETRY)
    for line in sys.stdin:
        completions = [AnsweredChat(*each) for each in json.loads(line)]
        print(json.dumps(model.score(completions)), file=out)


if __name__ == "__main__":
    guard_output()
    die_with_parent(parent=int(sys.argv[2]))
    answers = os.fdopen(os.dup(1), "w", buffering=1, encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to the errors
    main(sys.argv[1], sys.argv[-1], answers)
