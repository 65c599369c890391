"""What crosses between a pod and Dagster: progress by Pipes."""

import os
import subprocess
import sys

import dagster as dg
import pytest

from assets.cluster import PodLines


@pytest.mark.slow
def test_progress_lines_of_a_pod_reach_the_run_once() -> None:
    code = "from pipeline.training.journal import emit; print('noise'); emit('step 3 of 6'); print('{\"a\": 1}')"
    others: list[str] = []

    @dg.asset
    def trained(context: dg.AssetExecutionContext):
        reader = PodLines()
        with dg.open_pipes_session(context, dg.PipesEnvContextInjector(), reader) as session:
            env = {**os.environ, **session.get_bootstrap_env_vars()}
            ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
            others.extend(line for line in ran.stdout.splitlines() if not reader.take(line))
        assert not reader.take('{"__dagster_pipes_version": "0.1"}')  # nobody listens any more
        yield dg.MaterializeResult()

    with dg.instance_for_test() as instance:
        result = dg.materialize([trained], instance=instance)
        logged = [entry.user_message for entry in instance.all_logs(result.run_id)]
    assert sum("step 3 of 6" in message for message in logged) == 1
    assert others == ["noise", '{"a": 1}']


def test_what_a_pod_prints_cannot_fail_the_step() -> None:
    junk = [
        '{"__dagster_pipes_version": "0.1"',
        '["__dagster_pipes_version"]',
        '{"__dagster_pipes_version": "0.1", "method": "delete_everything", "params": {}}',
        '{"text": "__dagster_pipes_version"}',
    ]
    taken: list[bool] = []

    @dg.asset
    def trained(context: dg.AssetExecutionContext):
        reader = PodLines()
        with dg.open_pipes_session(context, dg.PipesEnvContextInjector(), reader):
            taken.extend(reader.take(line) for line in junk)
        yield dg.MaterializeResult()

    assert dg.materialize([trained]).success
    assert taken == [False] * len(junk)


def test_a_rank_that_is_not_the_first_says_nothing() -> None:
    code = "from pipeline.training.journal import emit; emit('x')"
    env = {**os.environ, "RANK": "1"}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    assert ran.stdout == ""
