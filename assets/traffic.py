"""Production's traffic as a rollout meets it: the router that the recipe names, its metrics, and the wait between looks.

The one place that constructs a router. Of an embedded world nobody else asks: while a run of the rollout waits, its
simulated users do, over HTTP, and where no gateway runs the step starts one with its slots for as long as it needs it.
"""

import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import NamedTuple, assert_never

from assets.environment import environment
from assets.resources import Deployment
from k8s.client import cluster
from k8s.route import HttpRoute
from pipeline import layout
from pipeline.demo.users import ask, requests_of
from pipeline.gateway.keeper import SlotKeeper
from pipeline.gateway.lock import running_address
from pipeline.gateway.metrics import GatewayLooks
from pipeline.gateway.process import running_gateway
from pipeline.gateway.settings import GatewaySettings
from pipeline.gateway.split import GatewaySplit
from pipeline.recipe.rollout import GatewayTraffic, HttpRouteTraffic, SagemakerTraffic
from pipeline.recipe.traces import DemoSource
from pipeline.rollout.controller import LiveMetricsPort, Unwatched
from pipeline.rollout.grading import AnswerGrader
from pipeline.rollout.prometheus import PrometheusLooks
from pipeline.rollout.router import TrafficSplit
from pipeline.rollout.sagemaker import SagemakerSplit
from pipeline.rollout.state import read_state
from pipeline.storage import ModelRef
from pipeline.traces.context import Log


class LiveTraffic(NamedTuple):
    """What a run of the rollout is given."""

    metrics: LiveMetricsPort
    wait: Callable[[float], None]
    """Seconds until the next look."""


def gateway_settings(deployment: Deployment) -> GatewaySettings:
    """What the gateway of this deployment is started with."""
    recipe = deployment.recipe()
    traffic = recipe.rollout.traffic
    assert isinstance(traffic, GatewayTraffic), "another router is nobody's to start"
    return GatewaySettings(
        root=str(deployment.store().root.absolute()),
        model_name=recipe.base_model.name,
        port=traffic.port,
        workers=traffic.workers,
        record=traffic.record,
        trust_user_header=traffic.trust_user_header,
        slot_urls=() if traffic.slots is None else (traffic.slots.a, traffic.slots.b),
    )


def wanted_models(deployment: Deployment, now: float) -> list[ModelRef]:
    """The models that need a slot: the champion, a candidate on its way, and the champion before while it is the way
    back."""
    state = read_state(deployment.store(), deployment.recipe().base_model.name)
    wanted = [deployment.champion().model]
    if state.proposal is not None and state.active:
        wanted.append(state.proposal.version.model)
    elif state.proposal is not None and now < state.warm_until:
        wanted.append(state.proposal.champion)
    return list({model.digest: model for model in wanted}.values())
