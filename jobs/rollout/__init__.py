"""The rollout at a terminal: `pt rollout status | plan | history | approve | pause | resume | abort | rollback`.

Exit codes: 0 done, 1 refused or nothing to act on (it says why), 2 it could not be done (it says why).
"""

import argparse
from collections.abc import Callable

from assets.naming import ROLLOUT
from assets.resources import deployment

COMMAND = "pt rollout"
DONE, REFUSED, FAILED = 0, 1, 2
AddCommand = Callable[..., argparse.ArgumentParser]
"""`add_parser` of the subcommands, to which each module adds its own."""


def look_command() -> str:
    """What takes the rollout further."""
    return deployment().launch(ROLLOUT)
