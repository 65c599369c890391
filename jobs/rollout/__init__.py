"""The rollout at a terminal: `pt rollout status | watch | plan | history | approve | pause | resume | abort
| rollback | aa`.

Exit codes: 0 done, 1 refused or nothing to act on (it says why), 2 it could not be done (it says why).
"""

import argparse
from collections.abc import Callable

COMMAND = "pt rollout"
DONE, REFUSED, FAILED = 0, 1, 2
AddCommand = Callable[..., argparse.ArgumentParser]
"""`add_parser` of the subcommands, to which each module adds its own."""


def look_command() -> str:
    """What takes the rollout further."""
    return _launch("canary_rollout")


def next_command() -> str:
    """What begins the next iteration."""
    return _launch("preference_tuning")


def _launch(job: str) -> str:
    """Of the model that the environment names."""
    from assets.resources import deployment  # Dagster takes seconds, and --help is answered without it

    try:
        return deployment().launch(job)
    except ValueError:  # a rollout is shown and decided whatever became of the recipe
        return f"dagster job launch -j {job}"
