"""A gang as the objects to apply, by backend. `suspend` is not among their fields: Kueue sets it, and an apply that
owned it would stop a running gang."""

from k8s.gang import Gang
from k8s.render.jobset import training_jobset
from k8s.render.pod import Object
from k8s.render.rayjob import training_rayjob
from k8s.render.volcano import training_vcjob

__all__ = ["Object", "primary", "render", "training_jobset", "training_rayjob", "training_vcjob"]


def render(gang: Gang) -> list[Object]:
    """The objects of one attempt; deleting the first is enough."""
    match gang.settings.backend:
        case "jobset":
            return [training_jobset(gang)]
        case "volcano":
            return [training_vcjob(gang)]
        case "rayjob":
            return [training_rayjob(gang)]


def primary(gang: Gang) -> Object:
    """The object whose status is the gang's."""
    return render(gang)[0]
