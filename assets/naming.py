"""What the definitions are called in Dagster: the same for every model. Where several share one Dagster, each is a code
location of the name `key_prefix`, and its asset keys begin with that."""

import json
import shlex

LOOP, ROLLOUT, LABELLING = "preference_tuning", "canary_rollout", "label_traces"
"""The jobs that take a recipe: the whole loop, its rollout, and its first two stages alone."""
DEPLOYMENT, IO_MANAGER = "deployment", "io_manager"
"""Resources."""


def owner_of(group: str) -> str:
    """The team of a group of assets."""
    return "team:ml-platform" if group in ("traces", "registry") else "team:post-training"


def launch_command(job: str = LOOP, stages: str = "", iteration: str = "", prefix: str | None = None) -> str:
    """What launches a job, to be typed; of the loop, some stages of it (`samples*`), of an iteration by its id.
    `prefix`: the recipe's `key_prefix`."""
    command = f"dagster job launch {f'-l {prefix} ' if prefix else ''}-j {job}"
    if stages:
        command += f" -o {shlex.quote(stages)}"
    if iteration:
        command += f" --tags {shlex.quote(json.dumps({'iteration': iteration}))}"
    return command
