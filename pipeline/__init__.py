"""What the loop does, in plain Python: traces -> rewards -> selection -> training -> registry, over serving.

Nothing here knows an orchestrator or a cluster. Each stage is one package, named by the word that `assets/` and
`tests/` use for it too. What processes need of a host is set here, before a library asks.
"""

import os
from pathlib import Path

LOOPBACK = ("localhost", "127.0.0.1", "::1")
NO_HOME = "/nonexistent"


def _keep_loopback_direct() -> None:
    """A proxy of the environment takes the requests of every library, but none to this machine."""
    hosts = (os.environ.get("no_proxy") or os.environ.get("NO_PROXY", "")).split(",")
    if hosts != ["*"]:
        direct = ",".join(dict.fromkeys([*filter(None, hosts), *LOOPBACK]))
        os.environ.update(no_proxy=direct, NO_PROXY=direct)


def _name_a_home() -> None:
    """Libraries ask for a home while they are imported, and make a folder "~" where a user id has none, nor an entry in
    /etc/passwd. Debian's name for none makes them say so when they write."""
    try:
        Path.home()
    except RuntimeError:
        os.environ["HOME"] = NO_HOME


_keep_loopback_direct()
_name_a_home()
