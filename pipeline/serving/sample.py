"""The caller's side of sampling: what is asked, what comes back, and the subprocess between.

Owns the request and the response. Refuses to import torch: that is `pipeline.serving.__main__`, which runs for the
length of one request and takes its memory with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from pipeline.storage import ModelRef, Record

Messages = list[dict[str, str]]
"""A chat prompt: `[{"role": "user", "content": ...}, ...]`."""


class Sampling(Record):
    """How completions are drawn. The same value, model and prompts give the same completions on CPU."""

    samples: int = 1
    temperature: float = 1.0
    max_completion_tokens: int = 32
    seed: int = 0
    batch_size: int = 256
    threads: int = 1


class Completion(Record):
    """One drawn completion. `finished` is False when it was cut at the token limit.

    `latency_s` is the wall-clock time of the batch that it was served in.
    """

    text: str
    tokens: int
    finished: bool
    latency_s: float


class Decoding(Record):
    """What decides an answer beside weights, prompt and sampling plan, as the process that served found it."""

    engine: str
    version: str
    device: str
    dtype: str
    """Of the weights as they were loaded, which may not be what they were saved in."""
    stop_ids: tuple[int, ...]
    """Token ids that end a completion."""
    context: int | None
    """Tokens that the model can attend to; None where its configuration does not say."""
    tokens_digest: str
    """sha256 of the prompts' token ids and of the text of every token: what template and tokenizer made of them."""


class SamplingRequest(Record):
    model: ModelRef
    prompts: list[Messages]
    sampling: Sampling


class SamplingResponse(Record):
    """The answer to a request: `completions` follows its prompts."""

    completions: list[list[Completion]]
    decoding: Decoding


class Sampler(Protocol):
    """Draws `sampling.samples` completions for each prompt; the outer list follows the prompts."""

    def __call__(self, model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> list[list[Completion]]: ...


class Server(Protocol):
    """As a Sampler, for callers who must know what else decided the answers. There is at least one prompt."""

    def __call__(self, model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> SamplingResponse: ...


def sampler(log: Callable[[str], None] = print) -> Sampler:
    """A sampler over `server(log)`."""
    serve = server(log)

    def sample(model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> list[list[Completion]]:
        return serve(model, prompts, sampling).completions if prompts else []

    return sample


def server(log: Callable[[str], None] = print) -> Server:
    """A server that answers each call from a subprocess and reports progress lines to `log`.

    It raises RuntimeError with the subprocess's last lines when that fails.
    """

    def serve(model: ModelRef, prompts: Sequence[Messages], sampling: Sampling) -> SamplingResponse:
        with tempfile.TemporaryDirectory(prefix="serving-") as folder:
            request, response = Path(folder, "request.json"), Path(folder, "response.json")
            request.write_text(SamplingRequest(model=model, prompts=list(prompts), sampling=sampling).model_dump_json())
            command = [sys.executable, "-m", "pipeline.serving", str(request), str(response), str(os.getpid())]
            tail = _follow(command, log)
            if not response.exists():
                raise RuntimeError(f"Serving {model.uri} failed; its last lines:\n{tail}")
            return SamplingResponse.model_validate_json(response.read_bytes())

    return serve


def _follow(command: list[str], log: Callable[[str], None]) -> str:
    tail: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                tail = [*tail[-19:], line.rstrip()]
                if line.startswith("serving: "):
                    log(line.rstrip())
        except BaseException:  # an interrupted step must not leave its server behind
            process.kill()
            raise
    return "\n".join(tail)
