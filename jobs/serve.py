"""`pt serve` (`make serve`): the gateway on 127.0.0.1 until Ctrl-C or SIGTERM, with a slot for each model that is
wanted, unless the recipe names slots that others keep; a candidate that is an adapter shares the champion's server.

A rollout that is opened meanwhile finds it running and moves its weights; the candidate gets a slot as soon as it is
proposed, and the champion before it keeps its own for as long as the recipe keeps it warm. It decides nothing:
`canary_rollout` does.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from types import FrameType

from assets.resources import deployment
from assets.traffic import gateway_settings, put_champion_in_place, servable_adapters, wanted_models
from pipeline.recipe.rollout import GatewayTraffic
from pipeline.rollout.gateway.keeper import SlotKeeper
from pipeline.rollout.gateway.process import running_gateway
from pipeline.traces.context import Log

_print: Log = partial(print, flush=True)
POLL_S = 1.0
"""Between two looks at which models are wanted."""


def parser() -> argparse.ArgumentParser:
    return argparse.ArgumentParser(prog="pt serve", description=__doc__)


def main(arguments: Sequence[str] = ()) -> int:
    parser().parse_args(arguments)
    settings = deployment()
    recipe = settings.recipe()
    traffic = recipe.rollout.traffic
    if not isinstance(traffic, GatewayTraffic):
        why = "so nothing is routed" if traffic.kind == "none" else "which others keep"
        print(f"rollout.traffic of {settings.recipe_path} is {traffic.kind}, {why}: nothing is served here.")
        return 1
    signal.signal(signal.SIGTERM, _end)
    limit, name = recipe.evaluation.max_completion_tokens, recipe.base_model.name
    try:
        with ExitStack() as stack:
            put_champion_in_place(settings)
            keeper, serving = None, wanted_models(settings, time.time())
            if not traffic.slots:
                keeper = stack.enter_context(SlotKeeper(settings.store(), name, limit, _print))
                keeper.serve(serving, servable_adapters(settings))
            gateway = stack.enter_context(running_gateway(gateway_settings(settings), _print))
            _print(f"Clients use {gateway.url}/v1  End it with Ctrl-C.")
            while True:
                time.sleep(POLL_S)
                wanted = wanted_models(settings, time.time())
                if keeper is not None and (wanted != serving or keeper.due):
                    keeper.serve(wanted, servable_adapters(settings))
                    serving = wanted
    except KeyboardInterrupt:
        return 0
    except (RuntimeError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 2


def _end(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
