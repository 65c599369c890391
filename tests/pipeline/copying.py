"""`python -m tests.pipeline.copying URI DIGEST CACHE [PAUSE]`: holds a model in a node's cache, and says so.

From its file number PAUSE on it asks for none before it gets a line: a copy that a test ends there.
"""

import sys
from pathlib import Path
from typing import Any

from pipeline.core.storage import ModelRef
from pipeline.serving import model_places
from pipeline.serving.model_places import NodeCache


def pausing(opened: Any, at: int) -> Any:
    asked: list[str] = []

    def wrapped(uri: str) -> tuple[Any, str]:
        files, target = opened(uri)
        whole = files.get_file

        def get_file(place: str, path: str) -> None:
            if len(asked) >= at:
                print("paused", flush=True)
                sys.stdin.readline()
            asked.append(place)
            whole(place, path)

        files.get_file = get_file
        return files, target

    return wrapped


if __name__ == "__main__":
    uri, digest, folder, *pause = sys.argv[1:]
    model_places.AT_ONCE = 1
    if pause:
        model_places.opened = pausing(model_places.opened, int(pause[0]))
    with NodeCache(Path(folder), 1 << 30).hold(ModelRef(uri=uri, digest=digest), lambda line: print(line, flush=True)):
        print("held", flush=True)
        sys.stdin.readline()
