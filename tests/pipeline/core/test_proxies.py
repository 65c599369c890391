"""A proxy of the environment: each client of ours goes through it, but to this machine it goes straight."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import date
from typing import NamedTuple

import pytest
from mlflow.exceptions import MlflowException

from k8s.prometheus import PrometheusLooks
from pipeline.core.objects import CHECKSUMS
from pipeline.core.storage import ModelRef
from pipeline.recipe.rollout import PrometheusMetrics
from pipeline.recipe.sources import LangfuseApiSource
from pipeline.registry.runs import mlflow_client
from pipeline.rollout.evidence import LookRequest
from pipeline.rollout.notices import post
from pipeline.rollout.probe import fingerprint_over_http
from pipeline.rollout.router import Split
from pipeline.serving.client import HttpClient
from pipeline.serving.endpoint import Endpoint, served_names
from pipeline.traces.lake_config import LakeConfig
from pipeline.traces.sources.langfuse_api import LangfuseApi
from tests.servers import answering

pytestmark = pytest.mark.slow
AWAY = "http://server.example:8080"
A, B = (ModelRef(uri="", digest=each * 64) for each in "ab")


class Listener(NamedTuple):
    """Refuses every request, and keeps what each one asked for."""

    url: str
    asked: list[str]


@contextmanager
def listening() -> Iterator[Listener]:
    paths: list[str] = []
    with answering(lambda asked: (paths.append(asked.path), (404, b"{}"))[1]) as url:
        yield Listener(url, paths)


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Listener]:
    with listening() as server:
        for name in ("HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"):
            monkeypatch.setenv(name, server.url)
        for name in CHECKSUMS:  # the table's client sets them
            monkeypatch.setenv(f"AWS_{name.upper()}", "when_required")
        yield server


def ask_a_model(url: str) -> None:
    async def ask() -> None:
        client = HttpClient(Endpoint(url), 1, 10.0, 1000)
        await client.exchange("POST", f"{url}/chat/completions", b"{}")
        await client.aclose()

    asyncio.run(ask())


def look(url: str) -> None:
    split = Split(rollout="r", epoch=1, champion=A, canary=B, champion_weight=50, canary_weight=50)
    PrometheusLooks(PrometheusMetrics(url=url), "own").look(split, LookRequest(since=0.0, now=1e6, slow_over_s=None))


def open_a_table(url: str) -> None:
    from pyiceberg.io import load_file_io

    keys = {"s3.endpoint": url, "s3.access-key-id": "k", "s3.secret-access-key": "s"}
    lake = LakeConfig(catalogue="glue", warehouse="s3://b/lake", properties=keys)
    load_file_io(lake.options).new_input("s3://b/lake/x").exists()


def list_days(url: str) -> None:
    LangfuseApi(url.replace("://", "://pk:sk@"), LangfuseApiSource(since=date(2026, 1, 5))).probe()


CLIENTS: dict[str, Callable[[str], object]] = {
    "judge and endpoint": ask_a_model,
    "names of an endpoint": lambda url: served_names(Endpoint(url)),
    "fingerprint of a slot": lambda url: fingerprint_over_http(Endpoint(url), "own@1"),
    "Prometheus": look,
    "Langfuse": list_days,
    "MLflow": lambda url: mlflow_client(url).get_run("1"),
    "notices": lambda url: post(["a line"], url),
    "table in S3": open_a_table,
}


@pytest.mark.parametrize("client", CLIENTS)
def test_a_proxy_takes_all_but_what_stays_here(client: str, proxy: Listener) -> None:
    with suppress(OSError, ValueError, MlflowException):
        CLIENTS[client](AWAY)
    assert proxy.asked and all(path.startswith(AWAY) for path in proxy.asked)
    proxy.asked.clear()
    with listening() as here:
        with suppress(OSError, ValueError, MlflowException):
            CLIENTS[client](here.url)
        assert here.asked and not proxy.asked
