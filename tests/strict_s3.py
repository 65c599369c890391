"""S3 as other stores speak it: moto behind a door that refuses what some of them refuse."""

import logging
import re
import threading
from collections.abc import Collection, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

CHECKSUMS = ("x-amz-checksum-", "x-amz-sdk-checksum-", "x-amz-trailer")


class Refusals:
    """What the store does not take; `what` may change while it serves."""

    def __init__(self, what: Collection[str], keys: Path | None) -> None:
        self.what, self.keys = set(what), keys
        self.overloaded = iter(range(2))

    def code(self, request: Any) -> tuple[int, str] | None:
        """Status and code of the refusal, if this request is refused."""
        names = [name.lower() for name, _ in request.headers]
        signed, asked = request.headers.get("Authorization", ""), set(request.args)
        refused = {
            "overload": (503, "SlowDown", lambda: next(self.overloaded, None) is not None),
            "batches": (400, "MissingContentMD5", lambda: "delete" in asked and "content-md5" not in names),
            "checksums": (501, "NotImplemented", lambda: any(name.startswith(CHECKSUMS) for name in names)),
            "versions": (501, "NotImplemented", lambda: request.method == "GET" and asked & {"versions", "versioning"}),
            "deletion": (403, "AccessDenied", lambda: request.method == "DELETE"),
            "regions": (400, "AuthorizationHeaderMalformed", lambda: "/eu-central-1/s3/" not in signed),
        }
        if self.keys is not None and self.keys.read_text(encoding="utf-8") not in signed:
            return 400, "ExpiredToken"
        found = (answer for name, (*answer, refuses) in refused.items() if name in self.what and refuses())
        return next(found, None)  # pyright: ignore[reportReturnType]


@contextmanager
def strict_s3(
    *what: str, keys: Path | None = None, tls: tuple[str, str] | None = None
) -> Generator[tuple[str, Refusals]]:
    """The endpoint of a store that refuses `what`, also a listing's KeyCount, and its refusals. `keys`: a file with the
    id of the one access key that is valid. `tls`: files of a certificate for localhost and of its key."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server
    from werkzeug.wrappers import Request, Response

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    inner, refusals = DomainDispatcherApplication(create_backend_app), Refusals(what, keys)

    def store(environ: Any, start: Any) -> Any:
        if refused := refusals.code(Request(environ)):
            status, code = refused
            return Response(f"<Error><Code>{code}</Code><Message>No.</Message></Error>", status)(environ, start)
        answer = Response.from_app(inner, environ)
        if "counts" in refusals.what and "list-type=2" in environ["QUERY_STRING"]:
            answer.set_data(re.sub(rb"<KeyCount>\d+</KeyCount>", b"", answer.get_data()))
        return answer(environ, start)

    server = make_server("127.0.0.1", 0, store, threaded=True, ssl_context=tls)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"https://localhost:{server.port}" if tls else f"http://127.0.0.1:{server.port}", refusals
    finally:
        server.shutdown()
