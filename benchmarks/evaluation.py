"""How often the gate errs, and what its evidence costs: `python -m benchmarks.evaluation [--small] [PART ...]`. Each
part prints what it measured; the last line is JSON with all figures. Without names every part runs."""

import argparse
import json
import time
from collections.abc import Callable

from benchmarks import evaluation_answers as answers
from benchmarks import evaluation_gates as gates

Part = Callable[[bool], dict[str, float]]
"""Takes whether a small run is enough (seconds instead of minutes); gives figures by name."""
PARTS: dict[str, Part] = {
    "margin": gates.at_the_margin,
    "batches": answers.batches,
    "seeds": answers.seeds,
    "kills": answers.kills,
}


def main(arguments: list[str] | None = None) -> dict[str, float]:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("parts", nargs="*", metavar="PART", help=f"of {', '.join(PARTS)}")
    options.add_argument("--small", action="store_true", help="far fewer simulations, within a minute")
    chosen = options.parse_args(arguments)
    if unknown := set(chosen.parts) - set(PARTS):
        options.error(f"{', '.join(sorted(unknown))}: the parts are {', '.join(PARTS)}")
    figures: dict[str, float] = {}
    for name in chosen.parts or PARTS:
        started = time.monotonic()
        figures |= PARTS[name](chosen.small)
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    print(json.dumps(figures))
    return figures


if __name__ == "__main__":
    main()
