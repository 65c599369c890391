"""What the project says of admission, held against Kubernetes' own code, where that can be built."""

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from k8s.render import render

from .kubernetes_code import PolicyAnswer, ask_policies, ask_resources, build, missing
from .manifests import MANIFESTS, Object
from .policies import LAX, RUNS, asks, lax, plain
from .policy_requests import LAUNCHER, every
from .render.golden import CASES
from .schemas import DATA, problems
from .test_schemas import OBJECTS, REFUSED
from .verdicts import NO_PARAMETERS, AdmissionDenial, Policies

pytestmark = [pytest.mark.slow, pytest.mark.variant]
NAMESPACES = [
    {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": name, "labels": {"kubernetes.io/metadata.name": name}},
    }
    for name in (RUNS, "preference-tuning-serving")
]


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if why := missing():
        pytest.skip(f"Kubernetes' code: {why}")
    return build(tmp_path_factory.mktemp("apiserver"))


def objects(**limits: str) -> list[Object]:
    """The base `admission` in its namespace, values of its launch-limits replaced."""
    own = plain(MANIFESTS / "bases" / "admission")
    (given,) = (obj for obj in own if obj["metadata"]["name"] == "launch-limits")
    given["data"] |= limits
    return NAMESPACES + [obj for obj in own if obj["kind"] == "ConfigMap" or "Policy" in obj["kind"]]


def comparable(denials: list[AdmissionDenial]) -> list[tuple[str, str]]:
    """By policy; of an expression that fails, which one: each evaluator has its own words for why."""
    cut = [(each.policy, each.message.partition(" resulted in error")[0]) for each in denials]
    return sorted(cut, key=lambda each: each[0])


def test_every_expression_compiles_in_the_api_server(program: Path) -> None:
    answer = ask_policies(program, objects(), [])
    assert (answer.uncompiled, answer.expressions) == ([], 38)


def test_every_verdict_is_the_api_servers(program: Path) -> None:
    here, cases = objects(), every()
    answer, policies = ask_policies(program, here, [case.request for case in cases]), Policies(here)
    theirs = [(case.what, comparable(each)) for case, each in zip(cases, answer.denials, strict=True)]
    assert [(case.what, comparable(policies.denials(case.request))) for case in cases] == theirs
    assert {bool(each) for _, each in theirs} == {True, False}
    for (_, denied), message in zip(theirs, answer.messages, strict=True):
        denials = {
            f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: {text}" for name, text in denied
        }
        assert any(each in message for each in denials) if denials else message == ""


def refused_alone(change: Callable[[list[Object]], object], program: Path) -> PolicyAnswer:
    here = objects()
    change(here)
    return ask_policies(program, here, [asks(LAUNCHER, render(CASES["jobset-cpu"])[0])])


def test_what_does_not_compile_is_told_with_its_place(program: Path) -> None:
    def mistaken(here: list[Object]) -> None:
        (runs,) = (o for o in here if o["metadata"]["name"].endswith("-runs") and "validations" in o["spec"])
        runs["spec"]["validations"][1]["expression"] = "object.spec.selectr.all(k, k == )"

    (problem,) = refused_alone(mistaken, program).uncompiled
    assert problem.startswith("preference-tuning-runs, spec.validations[1]: compilation failed")


def test_without_its_limits_the_api_server_admits_nothing(program: Path) -> None:
    without = refused_alone(lambda here: here.remove(next(o for o in here if o["kind"] == "ConfigMap")), program)
    assert [each.message for each in without.denials[0]] == [NO_PARAMETERS]
    assert NO_PARAMETERS in without.messages[0]


@pytest.mark.parametrize(("section", "key", "value"), LAX, ids=[key for _, key, _ in LAX])
def test_a_lax_policy_is_as_lax_there(program: Path, section: str, key: str, value: str) -> None:
    wrong = render(CASES["jobset-cpu"])[0]
    del wrong["spec"]["replicatedJobs"]
    request = asks(LAUNCHER, wrong)
    here = lax(objects(), section, key, value)
    (theirs,) = ask_policies(program, here, [request]).denials
    assert comparable(theirs) == comparable(Policies(here).denials(request)) == []


def test_what_costs_too_much_is_refused(program: Path) -> None:
    """The budget of an expression is the server's: one that loops over all pairs of a long list is not decided."""
    gang = render(CASES["jobset-cpu"])[0]
    env = gang["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]["env"]
    env += [{"name": f"V{i}", "value": "x"} for i in range(2000)]
    answer = ask_policies(program, objects(), [asks(LAUNCHER, gang)])
    assert answer.messages == [""], "a gang with 2000 variables is within it"

    here = objects()
    (gangs,) = (o for o in here if o["metadata"]["name"].endswith("-gangs") and "validations" in o["spec"])
    dear = "variables.containers.all(c, c.env.all(a, c.env.exists_one(b, b.name == a.name)))"
    gangs["spec"]["validations"].append({"expression": dear, "message": "dear"})
    (message,) = ask_policies(program, here, [asks(LAUNCHER, gang)]).messages
    assert "cost" in message


def published(schema: Any) -> Any:
    """A schema of the reference data as an API server has it: a number or a text is one type, which rules may read."""
    if isinstance(schema, list):
        return [published(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    result = {key: published(each) for key, each in schema.items()}
    types = [each.get("type") for each in result.get("anyOf", []) if isinstance(each, dict)]
    if types == ["integer", "string"] and "type" not in result:
        return {**result, "x-kubernetes-int-or-string": True}
    if isinstance(kinds := result.get("type"), list):
        return {**result, "type": kinds[0], "nullable": True}
    return result


def custom() -> Iterator[Object]:
    """Of custom kinds: right and wrong ones of the tests of schemas. HTTPRoute's rules need a server's defaults."""
    for kind, change, _ in [*((kind, lambda obj: None, "") for kind in OBJECTS), *REFUSED]:
        changed = deepcopy(OBJECTS[kind])
        change(changed)
        if kind != "HTTPRoute":
            yield changed


@pytest.mark.shared
def test_rules_of_custom_resources_hold_as_in_the_server(program: Path, shared_data: object) -> None:
    pairs: list[tuple[Object, Object]] = []
    ours: list[list[str]] = []
    for obj in custom():
        group, _, version = obj["apiVersion"].partition("/")
        file = DATA / f"{group}_{version}_{obj['kind']}.json"
        if file.is_file():
            schema = json.loads(file.read_text())
            if jsonschema.Draft202012Validator(schema).is_valid(obj):  # else no server asks the rules
                pairs.append((published(schema), obj))
                ours.append(sorted(problems(obj)))
    theirs = ask_resources(program, pairs)
    assert len(pairs) > 8
    for (_, obj), own, other in zip(pairs, ours, theirs, strict=True):
        own = [each for each in own if not each.startswith("metadata")]
        assert len(own) == len(other), (obj, own, other)
        for each, answer in zip(own, sorted(other), strict=True):
            place, _, message = each.partition(": ")
            assert answer.startswith(place), (each, answer)
            assert answer.endswith(message), (each, answer)
