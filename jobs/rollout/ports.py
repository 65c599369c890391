"""The rollout of a deployment and the world that it reads and moves, for commands that decide about it."""

from assets.resources import Deployment
from pipeline.registry.versions import project
from pipeline.rollout.controller import RolloutPorts
from pipeline.rollout.router import LocalRouter, TrafficSplit


def split_of(settings: Deployment) -> TrafficSplit:
    """The deployment's router."""
    return LocalRouter(settings.store(), settings.recipe().base_model.name)


def ports_of(settings: Deployment, registry: bool = True) -> RolloutPorts:
    """`registry`: whether MLflow's aliases follow at once; else at the next tick."""
    store, name = settings.store(), settings.recipe().base_model.name
    if not registry:
        return RolloutPorts(store, name, split_of(settings), lambda state: None)
    uri = settings.tracking_uri()
    return RolloutPorts(store, name, split_of(settings), lambda state: project(uri, state))
