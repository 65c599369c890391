"""The rollout of a deployment and the world that it reads and moves, for commands that decide about it."""

from assets.resources import Deployment
from pipeline.registry.versions import project
from pipeline.rollout.notices import tell
from pipeline.rollout.ports import RolloutPorts
from pipeline.rollout.record import RolloutState
from pipeline.rollout.router import LocalRouter, TrafficSplit


def split_of(settings: Deployment) -> TrafficSplit:
    """The deployment's router."""
    return LocalRouter(settings.store(), settings.recipe().base_model.name)


def ports_of(settings: Deployment, registry: bool = True) -> RolloutPorts:
    """`registry`: whether MLflow's aliases follow at once; else at the next tick."""
    store, name, url = settings.store(), settings.recipe().base_model.name, settings.notify_url()
    uri = settings.tracking_uri() if registry else ""

    def follow(state: RolloutState) -> None:
        if registry:
            project(uri, state)

    return RolloutPorts(store, name, split_of(settings), follow, notify=lambda now: tell(store, name, url, now))
