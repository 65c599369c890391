"""`python -m tests.pipeline.copying URI DIGEST CACHE [PAUSE]`: holds a model in a node's cache, and says so.

From the byte PAUSE of a file on it asks for no range before it gets a line: a copy that a test ends there.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pipeline.core.storage import ModelRef
from pipeline.serving import model_places
from pipeline.serving.node_cache import NodeCache

CHUNK = 1 << 12


def pausing(opened: Any, at: int) -> Any:
    def wrapped(uri: str) -> tuple[Any, str]:
        files, target = opened(uri)
        whole = files.cat_file

        def cat_file(place: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
            if start is not None and start >= at:
                print("paused", flush=True)
                sys.stdin.readline()
            return whole(place, start=start, end=end, **more)

        files.cat_file = cat_file
        return files, target

    return wrapped


if __name__ == "__main__":
    uri, digest, folder, *pause = sys.argv[1:]
    model_places.CHUNK, model_places.AT_ONCE = CHUNK, 1
    if pause:
        model_places.opened = pausing(model_places.opened, int(pause[0]))
    with NodeCache(Path(folder), 1 << 30).hold(ModelRef(uri=uri, digest=digest), lambda line: print(line, flush=True)):
        print("held", flush=True)
        sys.stdin.readline()
