"""The code servers of this folder for `make ui`: `python -m jobs.code_servers FILE`, until SIGINT. FILE is the
workspace that names their sockets, written once the code is loaded or has failed to load."""

import signal
import sys
from contextlib import suppress
from pathlib import Path

import yaml
from dagster._cli.proxy_server_manager import ProxyServerManager
from dagster._cli.utils import get_instance_for_cli
from dagster._cli.workspace.cli_target import workspace_opts_to_load_target
from dagster_shared.cli import WorkspaceOpts


def main(file: Path) -> None:
    with (
        suppress(KeyboardInterrupt),
        get_instance_for_cli() as instance,
        ProxyServerManager(instance, workspace_opts_to_load_target(WorkspaceOpts()), "warning") as servers,
    ):
        written = file.with_suffix(".part")
        written.write_text(yaml.safe_dump({"load_from": servers.get_code_server_specs()}))
        written.rename(file)
        signal.pause()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
