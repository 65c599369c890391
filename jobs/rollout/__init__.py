"""The rollout at a terminal: `pt rollout status | watch | plan | history | approve | pause | resume | abort
| rollback | aa`.

Exit codes: 0 done, 1 refused or nothing to act on (it says why), 2 it could not be done (it says why).
"""

import argparse
from collections.abc import Callable

COMMAND = "pt rollout"
LOOK = "dagster job launch -j canary_rollout"
NEXT = "dagster job launch -j preference_tuning"
DONE, REFUSED, FAILED = 0, 1, 2
AddCommand = Callable[..., argparse.ArgumentParser]
"""`add_parser` of the subcommands, to which each module adds its own."""
