"""`dagster dev` whose webserver listens on a Unix socket and on no port: `python -m jobs.dagster_dev SOCKET [options]`.

Any page in any browser of this machine can send requests to a port of 127.0.0.1; to a socket in a folder of one's own,
nobody else can. Dagster has no option for that, so the two calls that matter are replaced here: how `dagster dev`
starts the webserver, and how the webserver listens. Where Dagster starts it otherwise, this refuses to start it.
"""

import sys
from types import SimpleNamespace
from typing import Any

WEBSERVER = "dagster_webserver"


def dev(socket: str, options: list[str]) -> None:
    """`dagster dev` with these options, and with the webserver of `webserver` below."""
    from dagster._cli import dev as command
    from dagster._cli import main

    start = command.open_ipc_subprocess  # pyright: ignore[reportPrivateImportUsage]
    webservers: list[list[str]] = []

    def open_on_socket(words: list[str], **settings: Any) -> Any:
        if words[1:3] == ["-m", WEBSERVER]:
            webservers.append(words)
            words = [words[0], "-m", "jobs.dagster_dev", f"--webserver={socket}", *words[3:]]
        elif not webservers:
            raise RuntimeError("Dagster starts its webserver otherwise than 1.13 does. Install a tested version.")
        return start(words, **settings)

    command.open_ipc_subprocess = open_on_socket  # pyright: ignore[reportPrivateImportUsage]
    sys.argv = ["dagster", "dev", *options]
    main()


def webserver(socket: str, options: list[str]) -> None:
    """`dagster-webserver` with these options, on the socket instead of its port."""
    import uvicorn
    from dagster_webserver import cli

    def run(app: Any, *, log_level: str, **_: Any) -> None:
        uvicorn.run(app, uds=socket, log_level=log_level)

    cli.uvicorn = SimpleNamespace(run=run)  # pyright: ignore[reportPrivateImportUsage, reportAttributeAccessIssue]
    sys.argv = ["dagster-webserver", *options]
    cli.main()


if __name__ == "__main__":
    first, *others = sys.argv[1:]
    if first.startswith("--webserver="):
        webserver(first.removeprefix("--webserver="), others)
    else:
        dev(first, others)
