"""The proxy's process: `python -m pipeline.front_proxy --listen 127.0.0.1:3000 --to unix:/run/dagster.sock ...`.

It prints each one-time link as a line of its own where `--sign-in` asks for links.
"""

from __future__ import annotations

import argparse
import sys

import uvicorn

from pipeline.front_proxy.app import FrontProxy
from pipeline.front_proxy.rules import SiteRules
from pipeline.front_proxy.sign_in import SignIn
from pipeline.processes import die_with_parent

GRACE_S = 5


def _split(text: str) -> list[str]:
    return [word for word in text.split(",") if word]


def main(arguments: list[str]) -> None:
    """Serve until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(prog="python -m pipeline.front_proxy", description=__doc__)
    parser.add_argument("--listen", required=True, help="HOST:PORT")
    parser.add_argument("--to", required=True, help="the server behind: http://HOST:PORT or unix:/PATH")
    parser.add_argument("--hosts", type=_split, required=True, help="names that it is asked by, divided by commas")
    parser.add_argument("--origins", type=_split, required=True, help="origins of its pages, divided by commas")
    parser.add_argument("--sign-in", metavar="NAME", help="print one-time links for NAME; let nobody in without")
    parser.add_argument("--with-parent", action="store_true", help="end with the process that started this one")
    options = parser.parse_args(arguments)
    if options.with_parent:
        die_with_parent()
    host, _, port = options.listen.rpartition(":")
    sign_in = None
    if options.sign_in:
        title = f"{options.sign_in}  "
        sign_in = SignIn(options.origins[0], f"front-proxy-{port}", lambda link: print(f"{title}{link}", flush=True))
    rules = SiteRules(frozenset(map(str.lower, options.hosts)), frozenset(options.origins))
    uvicorn.run(
        FrontProxy(rules, options.to, sign_in),
        host=host,
        port=int(port),
        lifespan="on",
        access_log=False,  # its lines would hold the tokens of links
        server_header=False,
        date_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=GRACE_S,
        log_level="warning",
    )


if __name__ == "__main__":
    main(sys.argv[1:])
