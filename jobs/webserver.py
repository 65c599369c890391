"""Dagster's web server for its own pages alone: `python -m jobs.webserver`, with the options of `dagster-webserver`.
DAGSTER_ALLOWED_HOSTS names the hosts that it is asked by, divided by commas; by default 127.0.0.1 and localhost."""

from dagster_webserver import cli
from dagster_webserver.webserver import DagsterWebserver
from starlette.middleware import Middleware

from assets.environment import environment
from jobs.same_origin import SameOriginMiddleware


def main() -> None:
    build_middleware = DagsterWebserver.build_middleware
    hosts = (environment().dagster_hosts or "127.0.0.1,localhost").replace(",", " ").split()

    def guarded(self: DagsterWebserver) -> list[Middleware]:
        return [Middleware(SameOriginMiddleware, hosts=hosts), *build_middleware(self)]

    DagsterWebserver.build_middleware = guarded
    cli.main()


if __name__ == "__main__":
    main()
