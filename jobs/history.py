"""What Dagster remembers of an iteration: its runs, whose metadata show rows (labels, for example) as they were.

Owns the deletion of such runs after an erasure or retention. Refuses to touch a run that is not over.
"""

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

import dagster as dg

from assets.resources import ITERATION_TAG


@contextmanager
def instance_here() -> Iterator[dg.DagsterInstance | None]:
    """The instance that commands typed here use; None where no dagster.yaml lies."""
    if not Path("dagster.yaml").is_file():
        yield None
        return
    with dg.DagsterInstance.from_config(str(Path.cwd())) as instance:
        yield instance


def drop_runs(instance: dg.DagsterInstance, iterations: Collection[str], log: Callable[[str], None]) -> int:
    """Delete the finished runs of these iterations with their events; how many."""
    dropped = 0
    for iteration in sorted(iterations):
        for run in instance.get_runs(dg.RunsFilter(tags={ITERATION_TAG: iteration})):
            if run.is_finished:
                instance.delete_run(run.run_id)
                dropped += 1
            else:
                log(f"run {run.run_id} of iteration {iteration} is not over: delete it once it is")
    return dropped
