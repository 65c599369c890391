"""Read by every Python process that a test starts: nothing is collected while it imports.

Such a process mostly imports and ends, and an import leaves next to no garbage: looking for it takes a sixth of the
definitions' time and up to a quarter of trl's. After the first million objects the collector works as by itself.
"""

import gc

USUAL = gc.get_threshold()


def _begin(phase: str, info: dict[str, int]) -> None:
    if phase == "stop":
        gc.callbacks.remove(_begin)
        gc.set_threshold(*USUAL)


gc.set_threshold(1_000_000, *USUAL[1:])
gc.callbacks.append(_begin)
