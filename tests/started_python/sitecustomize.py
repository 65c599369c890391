"""Read by every Python process that a test starts: nothing is collected while it imports.

Such a process mostly imports and ends, and an import leaves next to no garbage: looking for it took a quarter of trl's
time, a third of MLflow's server's and almost half of the definitions'. After the first million objects the collector
works as it does by itself, without those.
"""

import gc

USUAL = gc.get_threshold()


def _begin(phase: str, info: dict[str, int]) -> None:
    if phase == "stop":
        gc.callbacks.remove(_begin)
        gc.freeze()
        gc.set_threshold(*USUAL)


gc.set_threshold(1_000_000, *USUAL[1:])
gc.callbacks.append(_begin)
