"""Production's traffic as a rollout meets it: the router that the recipe names, its metrics, and the wait between
looks, in which the simulated users of an embedded world ask."""

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple, assert_never

from assets.environment import environment
from assets.resources import Deployment
from pipeline.core import layout
from pipeline.core.storage import ModelRef, locked
from pipeline.demo.traffic import with_users
from pipeline.recipe import Recipe
from pipeline.recipe.rollout import GatewayTraffic, HttpRouteTraffic, InferencePoolTraffic, NoTraffic
from pipeline.recipe.sources import DemoSource
from pipeline.rollout.fold import adapters_to_serve, models_to_serve, read_state
from pipeline.rollout.gateway.keeper import SlotKeeper
from pipeline.rollout.gateway.metrics import SpanMetrics
from pipeline.rollout.gateway.pool import PooledSlots
from pipeline.rollout.gateway.process import GatewaySettings, on_port, running_address, running_gateway
from pipeline.rollout.gateway.split import GatewaySplit, ServedSlot, read_slots, write_champion
from pipeline.rollout.grading import Grading
from pipeline.rollout.probe import SlotIdentity
from pipeline.rollout.router import LiveMetricsPort, NoRouter, NullMetrics, TrafficSplit
from pipeline.serving.adapters import ServedAdapter, unservable
from pipeline.serving.model_places import exported
from pipeline.traces.context import Log
from pipeline.traces.erased import forgotten
from pipeline.traces.sources.protocol import Address


class LiveTraffic(NamedTuple):
    """What a run of the rollout is given besides the router."""

    metrics: LiveMetricsPort
    wait: Callable[[float], None]
    """Lets so many seconds pass until the next look."""


def traffic_split(deployment: Deployment) -> TrafficSplit:
    """The router that the recipe names. Nothing is connected before it is asked."""
    recipe = deployment.recipe()
    name, traffic = recipe.base_model.name, recipe.rollout.traffic

    def location(model: ModelRef) -> str:
        export_to = recipe.rollout.export_to
        return exported(model.digest, export_to, name) if export_to else model.uri

    match traffic:
        case GatewayTraffic():
            store, pool = deployment.store(), PooledSlots(name, traffic.slots, location)

            def slot_of(digest: str) -> ServedSlot | None:
                if not traffic.slots:
                    return read_slots(store, name).slot_of(digest)
                wanted = {model.digest for model in wanted_models(deployment, time.time())}
                return pool.slot_of(digest, wanted, servable_adapters(deployment))

            return GatewaySplit(store, name, slot_of, identity(deployment))
        case HttpRouteTraffic() | InferencePoolTraffic():
            from k8s.client import connect
            from k8s.rewrite import PoolRewrite
            from k8s.route import HttpRoute

            client, tell = connect(environment().kubeconfig), identity(deployment)
            if isinstance(traffic, HttpRouteTraffic):
                return HttpRoute(client, traffic, name, tell, location)
            return PoolRewrite(client, traffic, name, tell, location, partial(servable_adapters, deployment))
        case NoTraffic():
            return NoRouter()
        case _:
            assert_never(traffic)


def is_routed(deployment: Deployment) -> bool:
    """Whether something routes requests now that a rollout can follow: a gateway that runs, or another's router."""
    recipe = deployment.recipe()
    if not isinstance(recipe.rollout.traffic, GatewayTraffic):
        return not isinstance(recipe.rollout.traffic, NoTraffic)
    return running_address(deployment.store().path(layout.gateway(recipe.base_model.name))) is not None


@contextmanager
def live_traffic(deployment: Deployment, judged_by: Recipe, grading: Grading, log: Log) -> Generator[LiveTraffic]:
    """The traffic while the block runs. Raises RuntimeError when a server of the embedded world does not start.

    `judged_by`: the recipe whose rewards grade the answers; where and how they are read is the deployment's of now.
    """
    recipe, store = deployment.recipe(), deployment.store()
    rollout, name, source = recipe.rollout, recipe.base_model.name, recipe.traces.source
    if isinstance(rollout.traffic, NoTraffic):
        yield LiveTraffic(NullMetrics(), time.sleep)
        return
    if not isinstance(rollout.traffic, GatewayTraffic):
        yield LiveTraffic(_metrics(deployment, judged_by, grading, log), time.sleep)
        return
    with ExitStack() as stack:
        if isinstance(source, DemoSource):  # whose servers end with the run that started them
            stack.enter_context(locked(store.path(layout.gateway(name, "users.lock"))))
        if isinstance(source, DemoSource) and not is_routed(deployment):
            limit = recipe.evaluation.max_completion_tokens
            keeper = stack.enter_context(SlotKeeper(store, name, limit, log))
            put_champion_in_place(deployment)
            keeper.serve(wanted_models(deployment, time.time()), servable_adapters(deployment))
            own = on_port(gateway_settings(deployment), 0)  # found by its file, as any gateway
            stack.enter_context(running_gateway(own, log))
        wait = time.sleep
        if isinstance(source, DemoSource):
            wait = with_users(store, name, source, rollout.requests_per_look, log)
        yield LiveTraffic(_metrics(deployment, judged_by, grading, log), wait)


def put_champion_in_place(deployment: Deployment) -> None:
    """Before the embedded gateway has a second slot, it has to know which one is the champion's."""
    store, name = deployment.store(), deployment.recipe().base_model.name
    write_champion(store, name, deployment.champion().model, read_state(store, name).active)


def gateway_settings(deployment: Deployment) -> GatewaySettings:
    recipe = deployment.recipe()
    traffic = recipe.rollout.traffic
    assert isinstance(traffic, GatewayTraffic), "this project starts no other router"
    return GatewaySettings(
        root=str(deployment.store().root.absolute()), model_name=recipe.base_model.name, traffic=traffic
    )


def wanted_models(deployment: Deployment, now: float) -> list[ModelRef]:
    """The models that need a slot."""
    state = read_state(deployment.store(), deployment.recipe().base_model.name)
    return models_to_serve(state, deployment.champion().model, now)


def servable_adapters(deployment: Deployment) -> dict[str, ServedAdapter]:
    """Those of them that a server can answer by, beside the champion whose adapters they are."""
    traffic, name = deployment.recipe().rollout.traffic, deployment.recipe().base_model.name
    if traffic.kind not in ("gateway", "inference_pool") or (traffic.kind == "gateway" and traffic.arms == "merged"):
        return {}
    over = adapters_to_serve(read_state(deployment.store(), name))
    return {digest: each for digest, each in over.items() if not unservable(Path(each.adapter.uri))}


def identity(deployment: Deployment) -> SlotIdentity:
    store, name = deployment.store(), deployment.recipe().base_model.name
    return SlotIdentity(name, lambda: read_state(store, name), lambda: deployment.champion().model)


def _metrics(deployment: Deployment, judged_by: Recipe, grading: Grading, log: Log) -> LiveMetricsPort:
    recipe, store = deployment.recipe(), deployment.store()
    metrics, name = recipe.rollout.metrics, recipe.base_model.name
    if metrics is None:
        return SpanMetrics(store, name, grading, recipe.traces)
    from k8s.prometheus import PICKER, SERVERS, PrometheusLooks
    from pipeline.rollout.production import ProductionLooks, ProductionTraces

    address = Address(recipe.traces.source, deployment.source_uri())
    production = ProductionTraces(address, recipe.traces, name, lambda: forgotten(store))
    counted = PICKER if recipe.rollout.traffic.kind == "inference_pool" else SERVERS
    return ProductionLooks(PrometheusLooks(metrics, name, counted), production, grading, judged_by.rewards, log)
