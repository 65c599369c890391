"""Three stages that do what the run's tag `act` says, to test launching: succeed, fail, be refused, or hang once."""

import os
import subprocess
import time
from pathlib import Path

import dagster as dg

from pipeline.core.processes import die_with_parent

PIDS = Path(".dagster/pids")
"""Written by the step that hangs: its own pid and that of its child. While the file is there, none hangs again."""


@dg.asset
def traces(context: dg.AssetExecutionContext) -> int:
    context.log.info("a line to see live")
    return 1


@dg.asset(pool="training")
def policy(context: dg.AssetExecutionContext, traces: int) -> int:
    act = context.run.tags.get("act", "succeed")
    if act == "fail":
        raise ValueError("The reward is constant. Widen the prompts.")
    if act == "hang" and not PIDS.exists():
        child = subprocess.Popen(["sleep", "600"], preexec_fn=die_with_parent)
        PIDS.with_suffix(".part").write_text(f"{os.getpid()} {child.pid}")
        PIDS.with_suffix(".part").rename(PIDS)
        time.sleep(600)
    return traces + 1


@dg.asset(retry_policy=dg.RetryPolicy(max_retries=1))
def report(context: dg.AssetExecutionContext, policy: int) -> int:
    act = context.run.tags.get("act", "succeed")
    if act == "fail again":
        raise ValueError("The report is empty. Add an item.")
    if act == "refuse":
        raise dg.Failure("The plan is wrong. Change it.", allow_retries=False)
    return policy + 1


toy = dg.define_asset_job(
    "toy",
    executor_def=dg.multiprocess_executor.configured(
        {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": ["jobs.steps", "toy_definitions"]}}}
    ),
)

definitions = dg.Definitions(assets=[traces, policy, report], jobs=[toy])
