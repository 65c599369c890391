"""`python -m pipeline.serving MODEL BATCH_SIZE THREADS PARENT`: writes a line `{"decoding": ...}`, then reads a line
with the sampling, a line a request and an empty line, and writes an `{"answer": ...}` for each request."""

import json
import os
import sys
from typing import Any, TextIO

import torch

from pipeline.core.processes import die_with_parent
from pipeline.core.redaction import guard_output
from pipeline.serving.inference import AnswerRequest, Sampling
from pipeline.serving.loaded import LoadedModel, RequestRefused


def serve(model: LoadedModel, lines: TextIO, out: TextIO) -> None:
    """Answer until the input ends."""

    def write(kind: str, content: Any) -> None:
        out.write(json.dumps({kind: content}, ensure_ascii=False) + "\n")
        out.flush()

    write("decoding", model.decoding.model_dump(mode="json"))
    while first := lines.readline():
        sampling = Sampling.model_validate_json(first)
        requests = [AnswerRequest.model_validate_json(line) for line in iter(lines.readline, "\n")]
        try:
            for answer in model.answers(requests, sampling):
                write("answer", answer.model_dump(mode="json"))
        except RequestRefused as refusal:
            write("refused", str(refusal))
            return


def main(folder: str, batch_size: str, threads: str) -> None:
    # What libraries print goes to the errors: the output is for the lines above alone.
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    torch.set_num_threads(int(threads))
    serve(LoadedModel(folder, int(batch_size)), sys.stdin, out)


if __name__ == "__main__":
    guard_output()
    die_with_parent(parent=int(sys.argv[4]))
    main(*sys.argv[1:4])
