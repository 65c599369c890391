"""Both arms on real vLLM servers: the candidate as an adapter that comes, gets more and more requests and goes, while a
server dies; no request fails."""

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2
import pytest

from benchmarks.gateway_arms import tuned_model
from pipeline.core.storage import Store, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.recipe.serving import TransformersServing
from pipeline.rollout.gateway.pool import PooledSlots
from pipeline.rollout.gateway.split import GatewaySplit
from pipeline.rollout.probe import MIN_EQUAL, fingerprint_of_files, fingerprint_over_http
from pipeline.serving.adapters import ServedAdapter
from pipeline.serving.endpoint import Endpoint, served_name
from pipeline.serving.server_process import held_port, server_process
from pipeline.serving.transformers_engine import TransformersEngine, over
from tests.pipeline.rollout.gateway.world import NAME, awaited, in_a_thread, settings_of, split_of
from tests.pipeline.serving.listening import listening
from tests.servers import VLLM_ON_CPU, vllm_python

pytestmark = [pytest.mark.slow, pytest.mark.vllm]
BASE = model_ref(MODEL_DIR)
START_S = 540.0


@contextmanager
def vllm_pool(folder: Path, servers: int) -> Generator[list[str]]:
    """Root URLs of servers that hold the base and take adapters."""
    command = [str(vllm_python()), "-m", "vllm.entrypoints.openai.api_server", "--model", str(MODEL_DIR)]
    command += ["--served-model-name", served_name(NAME, BASE.digest), NAME, "--dtype", "float32", "--enforce-eager"]
    command += ["--enable-lora", "--max-loras", "2", "--max-lora-rank", "16", "--generation-config", "vllm"]
    environment = {**VLLM_ON_CPU, "OMP_NUM_THREADS": "1", "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "True"}
    environment |= {"VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    with ExitStack() as stack:
        ports = [stack.enter_context(held_port()).getsockname()[1] for _ in range(servers)]
        started = [
            stack.enter_context(
                server_process("vLLM", [*command, "--port", str(port)], environment, folder / str(port))
            )
            for port in ports
        ]
        for port, process in zip(ports, started, strict=True):
            process.await_health(f"http://127.0.0.1:{port}/health", START_S)
        yield [f"http://127.0.0.1:{port}/v1" for port in ports]


class Callers:
    """Asks without pause while its block runs. `models`: who answered; `failed`: answers that are none. `streams`:
    whether every second answer comes as a stream, which breaks off with its server once it has begun."""

    def __init__(self, url: str, names: list[str]) -> None:
        self._url, self._names, self._over, self.streams = url, names, threading.Event(), True
        self.models, self.failed = Counter[str](), list[str]()

    def __enter__(self) -> "Callers":
        self._threads = [threading.Thread(target=self._ask, args=(number,)) for number in range(4)]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        with httpx2.Client(base_url=self._url, timeout=120) as client:
            for turn in range(1_000_000):
                if self._over.is_set():
                    return
                body = {"model": NAME, "messages": [{"role": "user", "content": f"What is {turn} and 3?"}]}
                body |= {"max_tokens": 4, "user": f"{number}/{turn}", "stream": self.streams and turn % 2 == 1}
                reply = client.post("/v1/chat/completions", json=body)
                if reply.status_code != 200 or "error" in reply.text:
                    self.failed.append(reply.text)
                self.models.update(name for name in self._names if name in reply.text)


def test_no_request_fails_while_arms_come_move_and_go(tmp_path: Path) -> None:
    tuned = tuned_model(tmp_path / "tuned")
    champion, canary = names = [served_name(NAME, model.digest) for model in (BASE, tuned.merged)]
    over_base = {tuned.merged.digest: ServedAdapter(base=BASE.digest, adapter=tuned.adapter)}
    with vllm_pool(tmp_path, 2) as urls, in_a_thread(settings_of(tmp_path / "data", slots=tuple(urls))) as gateway:
        pool = PooledSlots(NAME, urls, lambda model: model.uri)
        wanted = {BASE.digest, tuned.merged.digest}
        port = GatewaySplit(
            Store(tmp_path / "data"), NAME, lambda digest: pool.slot_of(digest, wanted, over_base), lambda url, name: ""
        )

        def split(weight: int, epoch: int, loaded: bool = True) -> None:
            models = {"champion": BASE, "canary": tuned.merged if loaded else None}
            port.apply(split_of(weight, epoch, **models))
            awaited(
                lambda: (state := port.state()) and not state.refused and state.split and state.split.epoch == epoch
            )

        split(0, 1, loaded=False)
        with Callers(gateway.url, names) as callers:

            def until(name: str, more: int) -> None:
                asked = callers.models[name] + more
                deadline = time.monotonic() + 120
                while callers.models[name] < asked:
                    assert time.monotonic() < deadline, callers.models
                    time.sleep(0.05)

            until(champion, 20)
            slot = pool.slot_of(tuned.merged.digest, wanted, over_base)
            assert slot is not None and slot.name == canary
            with over(TransformersEngine(TransformersServing(), print)) as sample:
                files = fingerprint_of_files(tuned.merged, sample)
            for url in urls:
                answers = fingerprint_over_http(Endpoint(url), canary)
                assert sum(map(str.__eq__, answers, files)) >= MIN_EQUAL
                assert fingerprint_over_http(Endpoint(url), champion) != answers
            for epoch, weight in enumerate((5, 25, 100), 2):
                split(weight, epoch)
                until(canary, 10)
            callers.streams = False
            until(canary, 10)  # the streams before are over
            os.kill(listening(urls[0]), signal.SIGKILL)
            until(canary, 40)
            split(0, 5)
            before = callers.models[canary]
            until(champion, 40)
            assert callers.models[canary] <= before + 8, "those on their way"
            large = tuned_model(tmp_path / "large", r=32)
            too_large = {large.merged.digest: ServedAdapter(base=BASE.digest, adapter=large.adapter)}
            with pytest.raises(ValueError, match="rank"):
                pool.slot_of(large.merged.digest, {BASE.digest, large.merged.digest}, too_large)
            assert pool.slot_of(tuned.merged.digest, wanted, {}) is None, "it made room"
            until(champion, 20)
        assert callers.failed == [] and callers.models[canary] >= 70
