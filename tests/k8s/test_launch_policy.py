"""The admission policies: what launcher and daemon really send is admitted, each change of it refused by its rule."""

import copy
from pathlib import Path

import pytest

from k8s.gang import Gang
from k8s.render import render

from . import run_job
from .hostile import HOSTILE, HOSTILE_RUNS, POD, Change, at
from .manifests import MANIFESTS, Object, of_kind, overlay
from .policies import DAEMON, LAUNCHER, WEBSERVER, Policies, defaulted, plain, refusals, shipped
from .render.golden import CASES

ROOT = Path(__file__).parents[2]
RECIPES = [path.stem for path in (ROOT / "jobs" / "recipes").glob("*.yaml") if "  kubernetes:" in path.read_text()]


def admitted(gang: Gang) -> None:
    policies = shipped()
    for obj, stored in zip(render(gang), defaulted(render(gang)), strict=True):
        for operation in ("CREATE", "UPDATE"):
            assert refusals(policies, LAUNCHER, stored, operation) == [], obj["kind"]
        assert refusals(policies, LAUNCHER, obj) == [], obj["kind"]
        assert refusals(policies, LAUNCHER, obj, "DELETE") == [], obj["kind"]


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
def test_every_rendered_gang_is_admitted(case: str) -> None:
    admitted(CASES[case])


def changed(obj: Object, change: Change) -> Object:
    result = copy.deepcopy(obj)
    change(result)
    assert result != obj
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    ("case", "change", "rule"),
    [pytest.param(case, change, rule, id=f"{case}: {what}")
     for case, variants in HOSTILE.items() for what, change, rule in variants],
)  # fmt: skip
def test_a_hostile_gang_is_refused_by_its_rule(case: str, change: Change, rule: str) -> None:
    wrong = changed(defaulted(render(CASES[case]))[0], change)
    assert refusals(shipped(), LAUNCHER, wrong) == [rule]


def test_an_object_that_is_there_may_not_become_hostile() -> None:
    wrong = render(CASES["jobset-cpu"])[0]
    at(wrong, f"{POD}.containers").append({"name": "x", "image": "x"})
    assert refusals(shipped(), LAUNCHER, wrong, "UPDATE") == ["gang-pod"]


@pytest.mark.parametrize(("what", "change", "rule"), HOSTILE_RUNS, ids=[what for what, *_ in HOSTILE_RUNS])
def test_a_hostile_run_is_refused_by_its_rule(what: str, change: Change, rule: str) -> None:
    assert refusals(shipped(), DAEMON, changed(run_job.kept(), change)) == [rule]


def test_nobody_ends_what_is_another_accounts() -> None:
    run, (gang, *_) = run_job.kept(), render(CASES["jobset-cpu"])
    assert refusals(shipped(), LAUNCHER, run, "DELETE") == ["gang-name"]
    for user in (DAEMON, WEBSERVER):
        assert refusals(shipped(), user, run, "DELETE") == []
        assert refusals(shipped(), user, gang, "DELETE") == ["run-name"]
        pod = {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": "train-a-1-trainer-0-0-x7k2p"}}
        assert refusals(shipped(), user, pod, "DELETE") == ["run-name"]
        assert refusals(shipped(), user, {**pod, "metadata": run["metadata"]}, "DELETE") == []


def test_a_run_as_dagster_makes_it_is_admitted() -> None:
    for operation in ("CREATE", "DELETE"):
        assert refusals(shipped(), DAEMON, run_job.kept(), operation) == []
        assert refusals(shipped(), DAEMON, defaulted([run_job.kept()])[0], operation) == []


@pytest.mark.slow
def test_the_kept_run_is_the_one_that_dagster_makes(platform: str) -> None:
    assert run_job.made(platform) == run_job.kept(), "stale: python -m tests.k8s.run_job, and read the diff"
    larger = {"dagster-k8s/config": '{"container_config": {"resources": {"requests": {"cpu": "8"}}}}'}
    box = run_job.made(platform, larger)["spec"]["template"]["spec"]["containers"][0]
    assert box["resources"]["requests"]["cpu"] == "8"
    image = {"dagster-k8s/config": '{"container_config": {"image": "python:3.11"}}'}
    with pytest.raises(RuntimeError, match="image"):
        run_job.made(platform, image)


def test_without_its_limits_nothing_is_admitted() -> None:
    objects = [obj for obj in plain(MANIFESTS / "bases" / "admission") if obj["kind"] != "ConfigMap"]
    (denial,) = refusals(Policies(objects), LAUNCHER, render(CASES["jobset-cpu"])[0])
    assert "no params found" in denial


@pytest.mark.slow
@pytest.mark.parametrize("name", ["eks-spot-h200", "eks-a100", "gke"])
def test_an_overlay_admits_its_own_images_alone(name: str) -> None:
    policies = Policies(list(overlay(name)))
    (limits,) = (o for o in of_kind(overlay(name), "ConfigMap") if o["metadata"]["name"] == "launch-limits")
    run = run_job.kept()
    (code,) = (o for o in of_kind(overlay(name), "Deployment") if o["metadata"]["name"] == "dagster-code")
    assert refusals(policies, DAEMON, run) == ["run-image"]
    run["spec"]["template"]["spec"]["containers"][0]["image"] = code["spec"]["template"]["spec"]["containers"][0][
        "image"
    ]
    assert refusals(policies, DAEMON, run) == []
    (slot,) = (o for o in of_kind(overlay(name), "Deployment") if o["metadata"]["name"] == "slot-a")
    trainer = slot["spec"]["template"]["spec"]["containers"][0]["image"]
    nemo = limits["data"]["gangImages"].split(" ")[1] + trainer[trainer.index("@") :]
    gang = CASES["jobset-p5en-spot"]
    assert refusals(policies, LAUNCHER, render(gang)[0]) == ["gang-image"]
    for image in (trainer, nemo):
        settings = gang.settings.model_copy(update={"image": image})
        assert refusals(policies, LAUNCHER, render(gang.model_copy(update={"settings": settings}))[0]) == []


@pytest.mark.shared
def test_the_api_server_takes_the_policies(shared_data: Path) -> None:
    from .schemas import problems

    for obj in plain(MANIFESTS / "bases" / "admission"):
        assert problems(obj) == [], obj["metadata"]["name"]
