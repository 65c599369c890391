"""Every request that the tests of the admission policies make, for whoever else is to answer them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from k8s.__main__ import gangs_of_recipe
from k8s.gang import Gang
from k8s.render import render
from pipeline.recipe import load

from . import run_job
from .hostile import HOSTILE, HOSTILE_RUNS, Change
from .manifests import Object
from .policies import DAEMON, WEBSERVER, asks, defaulted
from .render.golden import CASES
from .verdicts import LAUNCHER, AdmissionRequest

ROOT = Path(__file__).parents[2]
RECIPES = [path.stem for path in (ROOT / "jobs" / "recipes").glob("*.yaml") if "  kubernetes:" in path.read_text()]


class PolicyCase(NamedTuple):
    what: str
    request: AdmissionRequest


def every() -> list[PolicyCase]:
    return [*_gangs(), *_hostile(), *_runs(), *_endings()]


def recipe_gangs(recipe: str, backend: str) -> Sequence[Gang]:
    """Of a shipped recipe, on this backend."""
    chosen = load(ROOT / "jobs" / "recipes" / f"{recipe}.yaml")
    assert chosen.compute.kubernetes is not None
    settings = chosen.compute.kubernetes.model_copy(update={"backend": backend})
    compute = chosen.compute.model_copy(update={"kubernetes": settings})
    return gangs_of_recipe(chosen.model_copy(update={"compute": compute}))


def _gangs() -> Iterator[PolicyCase]:
    named = dict(CASES) | {
        f"{recipe} {backend} {gang.task}": gang
        for recipe in RECIPES
        for backend in ("jobset", "volcano", "rayjob")
        for gang in recipe_gangs(recipe, backend)
    }
    for what, gang in named.items():
        for obj, stored in zip(render(gang), defaulted(render(gang)), strict=True):
            for operation, one in (("CREATE", obj), ("CREATE", stored), ("UPDATE", stored), ("DELETE", obj)):
                yield PolicyCase(f"{operation} {what}", asks(LAUNCHER, one, operation, old=obj))


def _hostile() -> Iterator[PolicyCase]:
    for case, variants in HOSTILE.items():
        for what, change, _ in variants:
            for objects in (render(CASES[case]), defaulted(render(CASES[case]))):
                old = defaulted(render(CASES[case]))[0]
                wrong = _changed(objects[0], change)
                for operation in ("CREATE", "UPDATE"):
                    request = asks(LAUNCHER, wrong, operation, old=old if operation == "UPDATE" else None)
                    yield PolicyCase(f"{case}: {what}", request)
    broken = render(CASES["jobset-cpu"])[0]
    del broken["spec"]["replicatedJobs"]
    yield PolicyCase("a JobSet without jobs", asks(LAUNCHER, broken))


def _runs() -> Iterator[PolicyCase]:
    for what, change, _ in HOSTILE_RUNS:
        yield PolicyCase(f"run: {what}", asks(DAEMON, _changed(run_job.kept(), change)))
    for run in (run_job.kept(), defaulted([run_job.kept()])[0]):
        for operation in ("CREATE", "UPDATE", "DELETE"):
            yield PolicyCase("a run", asks(DAEMON, run, operation, old=run))


def _endings() -> Iterator[PolicyCase]:
    run, (gang, *_) = run_job.kept(), render(CASES["jobset-cpu"])
    pod: Object = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "train-a-1-trainer-0-0-x7k2p"}, "spec": {}}
    own = {**pod, "metadata": {"name": run["metadata"]["name"]}}
    for user in (LAUNCHER, DAEMON, WEBSERVER, "system:serviceaccount:kube-system:job-controller"):
        for obj in (run, gang, pod, own):
            yield PolicyCase(f"{user} ends {obj['metadata']['name']}", asks(user, obj, "DELETE", old=obj))
    elsewhere = asks(LAUNCHER, _changed(gang, lambda obj: obj["metadata"].update(name="x")))
    yield PolicyCase("another namespace", elsewhere._replace(namespace="preference-tuning-serving"))


def _changed(obj: Object, change: Change) -> Object:
    change(obj)
    return obj
