"""`compose.yaml` of `pt init --compose`: every service's command, as it is written there, as a process on 127.0.0.1.

PostgreSQL is real and Debian's, the artifacts go to moto's S3 server. What needs Docker itself (images, the network's
names, the shared process ids) is not tried here.
"""

import os
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml
from dotenv import dotenv_values

from jobs.init import PROJECT, main
from tests.loop import ROOT
from tests.ports import held_port

UP_S = 300
SERVICES = ("postgresql", "mlflow", "daemon", "webserver")


class Composed:
    """The file with its variables filled in, and every address of its network moved to 127.0.0.1."""

    def __init__(self, project: Path, postgresql_port: int, ports: dict[str, int], variables: dict[str, str]) -> None:
        self.project, self.variables = project, variables
        self.moved = {
            "@postgresql:5432": f"@127.0.0.1:{postgresql_port}",
            "/project": str(project),
            "0.0.0.0": "127.0.0.1",
            "http://mlflow:5000": f"http://127.0.0.1:{ports['mlflow']}",
        }
        self.ports = ports
        text = re.sub(r"\$\{(\w+)(?::([-?])([^}]*))?\}", self._value, (project / "compose.yaml").read_text())
        self.services: dict[str, Any] = yaml.safe_load(text)["services"]
        self.configs: dict[str, Any] = yaml.safe_load(text)["configs"]

    def _value(self, match: re.Match[str]) -> str:
        name, how, other = match.groups()
        value = self.variables.get(name, "")
        assert value or how == "-", f"{name} is not set, and compose would stop"
        return value or other

    def _at(self, name: str, text: str) -> str:
        for old, new in self.moved.items():
            text = text.replace(old, new)
        port = self.ports[name]
        return re.sub(
            r"(?<![\d:/])(?:3000|5000)\b|(?<=127\.0\.0\.1:)[35]000\b|(?<=localhost:)[35]000\b", str(port), text
        )

    def command(self, name: str) -> list[str]:
        return [self._at(name, word) for word in self.services[name]["command"]]

    def environment(self, name: str) -> dict[str, str]:
        given = {key: self._at(name, value) for key, value in self.services[name].get("environment", {}).items()}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        kept = {"PATH": path, "PYTHONPATH": str(ROOT), "HOME": str(self.project), "HF_HUB_OFFLINE": "1"}
        return {**kept, **{key: value for key, value in given.items() if value}}

    def is_healthy(self, name: str) -> bool:
        words = [self._at(name, word) for word in self.services[name]["healthcheck"]["test"][1:]]
        return subprocess.run(words, cwd=self.project, env=self.environment(name), capture_output=True).returncode == 0


def until(is_so: Any, process: subprocess.Popen[str] | None = None) -> None:
    deadline = time.monotonic() + UP_S
    while not is_so():
        assert process is None or process.poll() is None, "it ended"
        assert time.monotonic() < deadline
        time.sleep(0.5)


def test_the_instance_differs_in_its_storage_alone() -> None:
    embedded, composed = (
        yaml.safe_load((PROJECT / name).read_text()) for name in ("dagster.yaml", "dagster-postgresql.yaml")
    )
    assert composed.pop("storage") == {"postgres": {"postgres_url": {"env": "DAGSTER_PG_URL"}}}
    embedded.pop("storage")
    assert composed == embedded


def test_nothing_but_the_two_pages_is_reached_from_outside(tmp_path: Path) -> None:
    assert main([str(tmp_path / "p"), "--compose"]) == 0
    services = yaml.safe_load((tmp_path / "p" / "compose.yaml").read_text())["services"]
    assert tuple(services) == SERVICES
    published = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert published == {"webserver": ["127.0.0.1:3000:3000"], "mlflow": ["127.0.0.1:5000:5000"]}
    modes = {name: (tmp_path / "p" / name).stat().st_mode & 0o777 for name in (".env", "mark-keys")}
    assert modes == {".env": 0o600, "mark-keys": 0o600}
    ignored = (tmp_path / "p" / ".gitignore").read_text().split()
    assert {"/.env", "/mark-keys"} <= set(ignored)


@pytest.fixture
def composed(tmp_path: Path, postgres_url: str, s3_endpoint: str) -> Iterator[Composed]:
    project = tmp_path / "project"
    assert main([str(project), "--compose"]) == 0
    with ExitStack() as stack:
        ports = {name: stack.enter_context(held_port()).getsockname()[1] for name in SERVICES[1:]}
        variables = {name: value for name, value in dotenv_values(project / ".env").items() if value}
        variables |= {"AWS_ENDPOINT_URL_S3": s3_endpoint, "MLFLOW_ARTIFACTS": "s3://composed/mlflow"}
        variables |= {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}
        result = Composed(project, int(postgres_url.rpartition(":")[2].partition("/")[0]), ports, variables)
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute("create role dagster login")
            connection.execute("create database dagster owner dagster")
            connection.execute(result.configs["databases"]["content"])
        yield result
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        for name in ("dagster", "mlflow"):
            connection.execute(f"drop database {name} with (force)".encode())
        connection.execute("drop role dagster")


@pytest.mark.slow
@pytest.mark.variant
def test_every_service_runs_and_a_launch_goes_through_all(composed: Composed) -> None:
    project, processes = composed.project, dict[str, subprocess.Popen[str]]()
    try:
        for name in SERVICES[1:]:
            processes[name] = subprocess.Popen(
                composed.command(name), cwd=project, env=composed.environment(name), text=True
            )
            if "healthcheck" in composed.services[name]:
                until(lambda name=name: composed.is_healthy(name), processes[name])
        environment = composed.environment("daemon") | {
            "PREFERENCE_TUNING_OVERRIDES": "traces.source.traces_per_day=100"
        }
        command = [sys.executable, "-m", "dagster", "job", "launch", "-j", "preference_tuning", "-o", "traces"]
        done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        with psycopg.connect(environment["DAGSTER_PG_URL"].replace("+psycopg2", "")) as connection:
            assert connection.execute("select status from runs").fetchall() == [("SUCCESS",)]
        assert not list(project.glob(".dagster/storage")), "nothing is kept in SQLite"
        for name, title in (("webserver", b"Dagster"), ("mlflow", b"MLflow")):
            address = f"http://localhost:{composed.ports[name]}"
            assert title in urllib.request.urlopen(address).read()
            with pytest.raises(urllib.error.HTTPError, match="403"):
                urllib.request.urlopen(urllib.request.Request(address, headers={"Host": "pages.example"}))
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            process.wait(UP_S)
