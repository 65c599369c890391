"""vLLM as a server that the step starts and ends, in the environment that VLLM_PYTHON names. Stop ids, context
and precision are the default engine's: vLLM's `auto` asks each folder, and the arms may have been saved in two."""

import json
import secrets
import subprocess
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from pipeline.core.conversation import holds_tools
from pipeline.core.storage import ModelRef
from pipeline.recipe.serving import TransformersServing, VllmServing
from pipeline.serving.chat import ChatClient, ChatSession, ServedModel
from pipeline.serving.client import AskingLoop, open_asking_loop
from pipeline.serving.endpoint import Endpoint
from pipeline.serving.inference import Answer, AnswerRequest, Decoding, Sampling, served_dtype
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


class VllmInstallation(NamedTuple):
    """What VLLM_PYTHON's environment has, and the device that it sees."""

    torch: str
    device: str
    dtype: str
    batch_invariant: bool


class VllmSession(ChatSession):
    """A model of our own server, whose end is explained. `parser`: of the calls that its model writes; "" where it
    takes no tools."""

    def __init__(
        self,
        loop: AskingLoop[ChatClient],
        decoding: Decoding,
        log: Callable[[str], None],
        process: ServerProcess,
        parser: str,
    ) -> None:
        super().__init__(loop, decoding, log)
        self._process, self._parser = process, parser

    def answer(self, requests: Sequence[AnswerRequest], sampling: Sampling, done: Callable[[Answer], None]) -> None:
        def take(answer: Answer) -> None:
            # vLLM counts the token that ended an answer, the default engine does not.
            done(answer.model_copy(update={"tokens": answer.tokens - 1}) if answer.finished else answer)

        refuse_unparsed(self._parser, (request.messages for request in requests))
        try:
            super().answer(requests, sampling, take)
        except RuntimeError as error:
            raise self._process.failure(f"stopped answering ({error})") from error
        if self._process.ended:
            raise self._process.failure("ended while it was asked. What was answered is not lost: run again")


class VllmEngine:
    """`python`: of an environment with vLLM. `folder`: for logs."""

    def __init__(self, settings: VllmServing, python: Path, folder: Path, log: Callable[[str], None]) -> None:
        self._settings, self._python, self.folder, self._log = settings, python, folder, log

    @contextmanager
    def open(self, arm: str, model: ModelRef) -> Generator[VllmSession]:
        """Raises ValueError for a model that cannot be served here, RuntimeError for a server that does not start."""
        _ = self._installation  # refuses an environment without vLLM first
        with TransformersEngine(TransformersServing(), self._log).open(arm, model) as session:
            folder_decoding = session.decoding
        with self._server(arm, model) as (process, endpoint):
            served = ServedModel(endpoint, arm, "evaluation.serving")
            client = ChatClient(served, self._settings, {"stop_token_ids": list(folder_decoding.stop_ids)})
            with open_asking_loop(client, self._settings.in_flight) as loop:
                decoding = self._decoding(loop, folder_decoding)
                yield VllmSession(loop, decoding, self._log, process, self._settings.tool_call_parser)

    @contextmanager
    def _server(self, name: str, model: ModelRef) -> Generator[tuple[ServerProcess, Endpoint]]:
        """Healthy, until the block ends."""
        settings, key = self._settings, secrets.token_urlsafe(24)
        with held_port() as held:
            port = held.getsockname()[1]
            command = [str(self._python.absolute()), "-m", "vllm.entrypoints.openai.api_server"]
            command += ["--host", "127.0.0.1", "--port", str(port), "--model", str(Path(model.uri).absolute())]
            command += ["--served-model-name", name, "--generation-config", "vllm", "--seed", "0"]
            command += ["--dtype", self._installation.dtype, "--tensor-parallel-size", str(settings.tensor_parallel)]
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
            if settings.tool_call_parser:
                command += ["--enable-auto-tool-choice", "--tool-call-parser", settings.tool_call_parser]
            with server_process("vLLM", command, environment, self.folder) as process:
                process.await_health(f"{root}/health", settings.start_timeout_s)
                yield process, Endpoint(f"{root}/v1", key)

    def _decoding(self, loop: AskingLoop[ChatClient], folder: Decoding) -> Decoding:
        (version,) = loop.all([None], lambda _: loop.client.version(), None)
        parallel, parser = self._settings.tensor_parallel, self._settings.tool_call_parser
        stated = [version, f"torch {self._installation.torch}", f"tensor parallel {parallel}" if parallel > 1 else ""]
        stated.append(f"tool calls {parser}" if parser else "")
        return Decoding(
            engine="vllm",
            version=", ".join(filter(None, stated)),
            device=self._installation.device,
            dtype=self._installation.dtype,
            stop_ids=folder.stop_ids,
            context=self._settings.max_model_len or folder.context,
            tokens_digest=folder.tokens_digest,
            batch_invariant=self._installation.batch_invariant,
        )

    @cached_property
    def _installation(self) -> VllmInstallation:
        done = subprocess.run([self._python, "-c", INSPECT], capture_output=True, cwd="/", check=False)
        stated: dict[str, Any] = json.loads(done.stdout) if done.returncode == 0 else {"vllm": False}
        if not stated["vllm"]:
            reason = done.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["there is no such package"]
            raise ValueError(
                f"{self._python} does not have vLLM ({reason[0]}). Set VLLM_PYTHON to the Python of an environment "
                "that has it."
            )
        device, capability = stated["device"], tuple(stated["capability"])
        dtype = served_dtype(on_gpu=device != "cpu")
        return VllmInstallation(stated["torch"], device, dtype, capability >= BATCH_INVARIANT_FROM)


def refuse_unparsed(parser: str, conversations: Iterable[Sequence[Mapping[str, Any]]]) -> None:
    """Raise ValueError for conversations with tools where no parser is known: the server would refuse each of them."""
    if not parser and any(map(holds_tools, conversations)):
        raise ValueError(
            "Questions hold tools: set tool_call_parser of the section serving, of kind vllm, to the name of vLLM's "
            "parser for the calls of the model's family (the values of vLLM's --tool-call-parser, such as hermes for "
            "Qwen), or choose kind transformers or endpoint."
        )
