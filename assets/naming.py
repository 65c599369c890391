"""What the definitions are called in Dagster. One Dagster has one model: a project and an instance for each."""

import json
import shlex

LOOP, ROLLOUT, LABELLING = "preference_tuning", "canary_rollout", "label_traces"
"""The jobs that take a recipe: the whole loop, its rollout, and its first two stages alone."""
DEPLOYMENT, IO_MANAGER = "deployment", "io_manager"
"""Resources."""


def owner_of(group: str) -> str:
    """The team of a group of assets."""
    return "team:ml-platform" if group in ("traces", "registry") else "team:post-training"


def launch_command(job: str = LOOP, stages: str = "", iteration: str = "") -> str:
    """What launches a job, to be typed; of the loop, some stages of it (`samples*`), of an iteration by its id."""
    command = f"dagster job launch -j {job}"
    if stages:
        command += f" -o {shlex.quote(stages)}"
    if iteration:
        command += f" --tags {shlex.quote(json.dumps({'iteration': iteration}))}"
    return command
