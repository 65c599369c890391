"""Preloaded by the server that the steps of a run are forked from: a step ends with that server, the server with the
run's worker, and trainers, samplers and checking workers with their step. So a killed worker leaves nothing behind."""

import os

from pipeline.core.processes import die_with_parent

_server: int | None = os.getpid()


def _end_with_the_server() -> None:
    """In each fork of the server; what a step forks itself is the step's business."""
    global _server
    if _server is not None:
        server, _server = _server, None
        die_with_parent(parent=server)


die_with_parent()  # by itself the server stays while a step does. With none yet, it notices its worker's end.
os.register_at_fork(after_in_child=_end_with_the_server)
