"""Begins a script in the environment of its library: `python -I start.py`, with one line of JSON on its input.

The line names a module of this folder, a function, its arguments, and the file for the reply. The input stays open
while the caller lives; when it closes, this process ends at once.
"""

import importlib
import json
import os
import sys
import threading
from pathlib import Path


class Refusal(Exception):
    """What its reader can mend, said in whole sentences; a traceback would say nothing more."""


def end_with_caller(descriptor: int) -> None:
    while os.read(descriptor, 4096):
        pass
    os._exit(3)


def main() -> None:
    # A descriptor of its own: the line may be long, and a library may close or read the standard input.
    descriptor = os.dup(0)
    line = b""
    while not line.endswith(b"\n"):
        block = os.read(descriptor, 1 << 20)
        if not block:
            sys.exit("the caller is gone")
        line += block
    threading.Thread(target=end_with_caller, args=(descriptor,), daemon=True).start()
    request = json.loads(line)
    sys.path.insert(0, str(Path(__file__).parent))
    sys.modules["start"] = sys.modules["__main__"]  # so that Refusal is one class
    function = getattr(importlib.import_module(request["module"]), request["function"])
    try:
        reply = {"result": function(**request["arguments"])}
    except Refusal as refusal:
        reply = {"refused": str(refusal)}
    Path(request["reply"]).write_text(json.dumps(reply))


if __name__ == "__main__":
    main()
