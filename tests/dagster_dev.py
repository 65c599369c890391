"""A real `dagster dev` for tests: web server, daemon and code server, asked by GraphQL as the UI asks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import yaml

from pipeline.recipe import load
from tests.loop import EMBEDDED, ROOT, SHORT
from tests.marked import MARK, kill
from tests.ports import held_port

BIN = Path(sys.executable).parent
DEADLINE_S = 400
LAUNCH = """mutation($run: ExecutionParams!) { launchRun(executionParams: $run) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message }
  ... on RunConfigValidationInvalid { errors { message } } } }"""
RE_EXECUTE = """mutation($parent: String!) {
  launchRunReexecution(reexecutionParams: {parentRunId: $parent, strategy: FROM_FAILURE}) {
  __typename ... on LaunchRunSuccess { run { runId } } ... on PythonError { message } } }"""
RUNS = """query { runsOrError(limit: 50) { ... on Runs { results {
  runId jobName status startTime endTime tags { key value } } } } }"""
ERRORS = """query($run: ID!) { logsForRun(runId: $run) { ... on EventConnection { events {
  __typename ... on ExecutionStepFailureEvent { stepKey error { message cause { message } } }
  ... on RunFailureEvent { message } } } } }"""


class DagsterDev:
    """`dagster dev` in `folder`, for the recipe in its `recipe.yaml`."""

    def __init__(self, folder: Path, data_root: Path, *overrides: str) -> None:
        folder.mkdir(parents=True)
        for name in ("dagster.yaml", ".env"):
            shutil.copy(ROOT / name, folder)
        self.folder, self.data_root, self.recipe = folder, data_root, folder / "recipe.yaml"
        self.write_recipe(*overrides)
        self._held, self._mark = held_port(), f"dev-{folder}"
        self.port = self._held.getsockname()[1]

    def write_recipe(self, *overrides: str) -> None:
        recipe = load(EMBEDDED, [*SHORT, f"data_root={self.data_root}", *overrides])
        self.recipe.write_text(yaml.safe_dump(recipe.model_dump(mode="json")))

    def environment(self) -> dict[str, str]:
        named = {"PREFERENCE_TUNING_RECIPE": str(self.recipe), "PREFERENCE_TUNING_OVERRIDES": ""}
        return {**os.environ, **named, "PWD": str(self.folder), MARK: self._mark, "PYTHONPATH": str(ROOT)}

    def type(self, *command: str) -> subprocess.CompletedProcess[str]:
        """A command in the same folder."""
        return subprocess.run(
            [str(BIN / command[0]), *command[1:]],
            cwd=self.folder,
            env=self.environment(),
            capture_output=True,
            text=True,
            check=False,
        )

    def __enter__(self) -> DagsterDev:
        with (self.folder / "dev.txt").open("wb") as output:
            self._process = subprocess.Popen(
                [BIN / "dagster", "dev", "-m", "jobs.definitions", "-h", "127.0.0.1", "-p", str(self.port)],
                cwd=self.folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        self.wait_for(lambda: self._is_up(), "the web server to answer")
        self.wait_for(lambda: self.location(), "the code location to load")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=60)
        kill(self._mark)

    def ask(self, query: str, **variables: Any) -> dict[str, Any]:
        """The data of an answer of Dagster's GraphQL."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/graphql",
            json.dumps({"query": query, "variables": variables}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "errors" not in answer, answer
        return answer["data"]

    def location(self) -> dict[str, str]:
        """Names of repository and code location; {} before it is loaded."""
        query = "query { repositoriesOrError { ... on RepositoryConnection { nodes { name location { name } } } } }"
        nodes = self.ask(query)["repositoriesOrError"].get("nodes") or []
        return (
            {"repositoryName": nodes[0]["name"], "repositoryLocationName": nodes[0]["location"]["name"]}
            if nodes
            else {}
        )

    def launch(self, job: str, config: Mapping[str, Any] | None = None, steps: list[str] | None = None) -> str:
        """What the button of the Launchpad does; the run's id."""
        run = {
            "selector": {**self.location(), "jobName": job, **({"solidSelection": steps} if steps else {})},
            "runConfigData": dict(config or {}),
            "mode": "default",
        }
        launched = self.ask(LAUNCH, run=run)["launchRun"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def re_execute(self, run: str) -> str:
        """*Re-execute from failure*; the id of the new run."""
        launched = self.ask(RE_EXECUTE, parent=run)["launchRunReexecution"]
        assert launched["__typename"] == "LaunchRunSuccess", launched
        return launched["run"]["runId"]

    def start_sensor(self, name: str) -> None:
        query = """mutation($selector: SensorSelector!) { startSensor(sensorSelector: $selector) {
          __typename ... on PythonError { message } } }"""
        answer = self.ask(query, selector={**self.location(), "sensorName": name})
        assert answer["startSensor"]["__typename"] == "Sensor", answer

    def start_schedule(self, name: str) -> None:
        query = """mutation($selector: ScheduleSelector!) { startSchedule(scheduleSelector: $selector) {
          __typename ... on PythonError { message } } }"""
        answer = self.ask(query, selector={**self.location(), "scheduleName": name})
        assert answer["startSchedule"]["__typename"] == "ScheduleStateResult", answer

    def runs(self, job: str = "") -> list[dict[str, Any]]:
        """The newest first; tags as a mapping."""
        found = self.ask(RUNS)["runsOrError"]["results"]
        runs = [{**run, "tags": {tag["key"]: tag["value"] for tag in run["tags"]}} for run in found]
        return [run for run in runs if job in ("", run["jobName"])]

    def ticks(self, sensor: str) -> list[str]:
        """The statuses of the looks that the daemon took by the sensor, the newest first."""
        query = """query($selector: SensorSelector!) { sensorOrError(sensorSelector: $selector) {
          ... on Sensor { sensorState { ticks(limit: 100) { status } } } } }"""
        answer = self.ask(query, selector={**self.location(), "sensorName": sensor})
        return [tick["status"] for tick in answer["sensorOrError"]["sensorState"]["ticks"]]

    def run(self, id: str) -> dict[str, Any]:
        return next(run for run in self.runs() if run["runId"] == id)

    def ended(self, id: str) -> str:
        """The status of a run once it has ended."""
        over = ("SUCCESS", "FAILURE", "CANCELED")
        self.wait_for(lambda: self.run(id)["status"] in over, f"run {id} to end")
        return self.run(id)["status"]

    def errors(self, run: str) -> str:
        """What the run's failure events say."""
        return json.dumps(self.ask(ERRORS, run=run)["logsForRun"]["events"])

    def wait_for(self, what: Callable[[], object], words: str) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not what():
            assert time.monotonic() < deadline, f"waited in vain for {words}: {(self.folder / 'dev.txt').read_text()}"
            time.sleep(0.5)

    def _is_up(self) -> bool:
        with suppress(OSError):
            return bool(self.ask("query { version }"))
        return False
