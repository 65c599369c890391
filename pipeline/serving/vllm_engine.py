"""vLLM as a server that the step starts and ends, in the environment that VLLM_PYTHON names. Stop ids and context are
the default engine's; the precision is that of the saved weights (vLLM's `auto` makes float16 of float32)."""

import json
import re
import secrets
import subprocess
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.chat_template import folder_template, written_call
from pipeline.core.conversation import holds_tools
from pipeline.core.storage import ModelRef, digest_json
from pipeline.recipe.serving import TransformersServing, VllmServing
from pipeline.serving.chat import ChatClient, ChatSession, ServedModel
from pipeline.serving.client import AskingLoop, open_asking_loop
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import (
    PROBES,
    Answer,
    AnswerRequest,
    Decoding,
    Messages,
    Sampling,
    beyond_context,
    unanswerable,
)
from pipeline.serving.server_process import ServerProcess, held_port, server_process
from pipeline.serving.transformers_engine import TransformersEngine

BATCH_INVARIANT_FROM = (8, 0)
"""Compute capability of a device on which VLLM_BATCH_INVARIANT works."""
INSPECT = """
import importlib.util, json, torch
gpu = torch.cuda.is_available()
print(json.dumps({
    "vllm": importlib.util.find_spec("vllm") is not None,
    "torch": torch.__version__,
    "device": torch.cuda.get_device_name() if gpu else "cpu",
    "capability": torch.cuda.get_device_capability() if gpu and torch.version.hip is None else [0, 0],
}))
"""
_FORMS = (
    ("hermes", re.compile(r'<tool_call>\s*\{"name": ?"probe_call"')),
    ("qwen3_coder", re.compile(r"<function=probe_call>")),
    ("mistral", re.compile(r"\[TOOL_CALLS\]")),
    ("llama3_json", re.compile(r'\{"name": ?"probe_call", ?"parameters":')),
)
"""vLLM 0.31's parsers, and the calls that they read; the recipe names those of other families."""


class VllmInstallation(NamedTuple):
    """What VLLM_PYTHON's environment has, and the device that it sees."""

    torch: str
    device: str
    batch_invariant: bool


class VllmServer(NamedTuple):
    """A server that is healthy."""

    process: ServerProcess
    endpoint: Endpoint
    parser: str = ""
    """Of the calls that its model writes; "" where it takes no tools."""


class VllmSession(ChatSession):
    """A model of our own server: its prompts are counted before anything is drawn, and its end is explained."""

    def __init__(
        self, loop: AskingLoop[ChatClient], decoding: Decoding, log: Callable[[str], None], server: VllmServer
    ):
        super().__init__(loop, decoding, log)
        self._server = server

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        def take(answer: Answer) -> None:
            # vLLM counts the token that ended an answer, the default engine does not.
            done(answer.model_copy(update={"tokens": answer.tokens - 1}) if answer.finished else answer)

        refuse_unparsed(self._server.parser, (request.messages for request in requests))
        try:
            refused = self._refused(requests, sampling.max_completion_tokens)
            if refused and not sampling.skip_unanswerable:
                raise ValueError(next(iter(refused.values())))
            for key, why in refused.items():
                done(unanswerable(key, why))
            super().answer([request for request in requests if request.key not in refused], sampling, take)
        except RuntimeError as error:
            raise self._server.process.failure(f"stopped answering ({error})") from error
        if self._server.process.ended:
            raise self._server.process.failure("ended while it was asked. What was answered is not lost: run again")

    def _refused(self, requests: Sequence[AnswerRequest], limit: int) -> dict[str, str]:
        """The requests that cannot be answered at all, by key, and why."""
        prompts = {json.dumps(request.messages): request.messages for request in requests}
        ids = self._loop.all(list(prompts.values()), self._loop.client.tokenize, None)
        why = {
            text: reason
            for (text, messages), tokens in zip(prompts.items(), ids, strict=True)
            if (reason := self._refusal(messages, tokens, limit))
        }
        by_request = ((request.key, why.get(json.dumps(request.messages))) for request in requests)
        return {key: reason for key, reason in by_request if reason}

    def _refusal(self, messages: Messages, ids: list[int] | None, limit: int) -> str:
        if ids is not None:
            return beyond_context(messages, len(ids), limit, self.decoding.context)
        roles = " ".join(message["role"] for message in messages)
        return (
            f"vLLM's server does not take messages of {roles}. Leave out the item that begins "
            f"{messages[-1]['content'][:60]!r}, or write a chat template that takes it."
        )


class VllmEngine:
    """`python`: of an environment with vLLM. `folder`: for logs. `arguments`: more for the server."""

    def __init__(
        self,
        settings: VllmServing,
        python: Path,
        folder: Path,
        log: Callable[[str], None],
        arguments: Sequence[str] = (),
    ) -> None:
        self._settings, self._python, self.folder, self._log = settings, python, folder, log
        self._arguments = tuple(arguments)

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Generator[VllmSession]:
        """Raises ValueError for a model that cannot be served here, RuntimeError for a server that does not start."""
        _ = self._installation  # refuses an environment without vLLM first
        with TransformersEngine(TransformersServing(), self._log).open(arm, model) as session:
            folder_decoding = session.decoding
        with self._server(arm, model) as server:
            served = ServedModel(server.endpoint, arm, "evaluation.serving")
            client = ChatClient(served, self._settings, {"stop_token_ids": list(folder_decoding.stop_ids)})
            with open_asking_loop(client, self._settings.in_flight) as loop:
                yield VllmSession(loop, self._decoding(loop, model, folder_decoding), self._log, server)

    @contextmanager
    def _server(self, name: str, model: ModelRef) -> Generator[VllmServer]:
        """Healthy, until the block ends."""
        settings, key = self._settings, secrets.token_urlsafe(24)
        with held_port() as held:
            port = held.getsockname()[1]
            command = [str(self._python.absolute()), "-m", "vllm.entrypoints.openai.api_server"]
            command += ["--host", "127.0.0.1", "--port", str(port), "--model", str(Path(model.uri).absolute())]
            command += ["--served-model-name", name, "--generation-config", "vllm", "--seed", "0"]
            command += ["--dtype", self._dtype(model), "--tensor-parallel-size", str(settings.tensor_parallel)]
            command += ["--gpu-memory-utilization", str(settings.memory_share), "--enable-prefix-caching"]
            if settings.max_model_len:
                command += ["--max-model-len", str(settings.max_model_len)]
            environment = {
                "VLLM_API_KEY": key,
                "VLLM_BATCH_INVARIANT": str(int(self._installation.batch_invariant)),
                "VLLM_NO_USAGE_STATS": "1",
                "DO_NOT_TRACK": "1",
                "HF_HUB_OFFLINE": "1",
            }
            root = f"http://127.0.0.1:{port}"
            if self._installation.device == "cpu":
                command += ["--enforce-eager"]  # compiling takes minutes there, and a compiler
            parser = self._parser(model)
            command += [*parser_arguments(parser), *self._arguments]
            with server_process("vLLM", command, environment, self.folder) as process:
                process.await_health(f"{root}/health", settings.start_timeout_s)
                yield VllmServer(process, Endpoint(f"{root}/v1", key), parser)

    def _decoding(self, loop: AskingLoop[ChatClient], model: ModelRef, folder: Decoding) -> Decoding:
        ids = loop.all(PROBES, loop.client.tokenize, None)
        (version,) = loop.all([None], lambda _: loop.client.version(), None)
        parallel = self._settings.tensor_parallel
        stated = [version, f"torch {self._installation.torch}", f"tensor parallel {parallel}" if parallel > 1 else ""]
        parser = self._parser(model)
        stated += [f"tool calls {parser}" if parser else "", " ".join(self._arguments)]
        return Decoding(
            engine="vllm",
            version=", ".join(filter(None, stated)),
            device=self._installation.device,
            dtype=self._dtype(model),
            stop_ids=folder.stop_ids,
            context=self._settings.max_model_len or folder.context,
            tokens_digest=digest_json(["tokenize", ids]),
            batch_invariant=self._installation.batch_invariant,
        )

    def _parser(self, model: ModelRef) -> str:
        return self._settings.tool_call_parser or parser_of(Path(model.uri))

    @cached_property
    def _installation(self) -> VllmInstallation:
        done = subprocess.run([self._python, "-c", INSPECT], capture_output=True, text=True, cwd="/", check=False)
        stated: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"vllm": False}
        if not stated["vllm"]:
            reason = done.stderr.strip().splitlines()[-1:] or ["there is no such package"]
            raise ValueError(
                f"{self._python} does not have vLLM ({reason[0]}). Set VLLM_PYTHON to the Python of an environment "
                "that has it."
            )
        return VllmInstallation(stated["torch"], stated["device"], tuple(stated["capability"]) >= BATCH_INVARIANT_FROM)

    def _dtype(self, model: ModelRef) -> str:
        """Precision to load the weights in: what the recipe says, else what they were saved in."""
        if self._settings.dtype != "auto":
            return self._settings.dtype
        config: dict[str, Any] = json.loads((Path(model.uri) / "config.json").read_text())
        texts = config.get("text_config", {})
        saved = [config.get("dtype"), config.get("torch_dtype"), texts.get("dtype"), texts.get("torch_dtype")]
        return next(filter(None, saved), "auto")


def parser_of(folder: Path) -> str:
    """The parser for the chat template of a model directory; "" where its family is not known, or it has no calls."""
    template = folder_template(folder)
    text = written_call(template) if template is not None else ""
    return next((name for name, form in _FORMS if form.search(text)), "")


def parser_arguments(parser: str) -> list[str]:
    """Arguments of vLLM's server."""
    return ["--enable-auto-tool-choice", "--tool-call-parser", parser] if parser else []


def refuse_unparsed(parser: str, conversations: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """Raise ValueError for conversations with tools where no parser is known: the server would refuse each of them."""
    if not parser and any(map(holds_tools, conversations)):
        raise ValueError(
            "Questions hold tools, and how the model writes calls is not known from its chat template: set "
            "tool_call_parser of the section serving, of kind vllm, to the name of vLLM's parser for its family (the "
            "values of vLLM's --tool-call-parser), or choose kind transformers or endpoint."
        )
