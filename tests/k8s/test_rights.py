"""Who may do what: each account's rights in each overlay are the calls of its own programs, by backend."""

import shutil
from pathlib import Path

import pytest

from k8s.client import RESOURCES

from .manifests import MANIFESTS, Object, gang_of, objects_of, of_kind, overlay, recipe_of, rights
from .schemas import problems

RUNS, PLATFORM, SERVING = "preference-tuning", "preference-tuning-platform", "preference-tuning-serving"
OVERLAYS = {"eks-spot-h200": {"jobset"}, "eks-a100": {"rayjob"}, "gke": {"rayjob"}}
"""And the backends that each has the components of."""
every_overlay = pytest.mark.parametrize("name", OVERLAYS)

# The calls of k8s/client.py: apply is a patch that may create; the rest is asked for by observe.py and log_tail.py.
OBJECT = {"get", "create", "patch", "delete"}
CALLS = {
    "": {"Pod": {"list"}, "Event": {"list"}},
    "jobset": {"JobSet": OBJECT, "Job": {"list"}, "Workload": {"list"}},
    "rayjob": {"RayJob": OBJECT, "Workload": {"list"}},
    "volcano": {"VolcanoJob": OBJECT},
}
"""By backend; "": whatever it is."""
ROLLOUT = {
    *((SERVING, "gateway.networking.k8s.io", "httproutes", verb) for verb in ("get", "patch")),
    *((SERVING, "", "configmaps", verb) for verb in ("get", "patch")),
    *((SERVING, "apps", *right) for right in (("deployments", "get"), ("deployments/scale", "patch"))),
    (SERVING, "discovery.k8s.io", "endpointslices", "list"),
}
# dagster_k8s 0.29: launcher.py and, for jobs, pods, their logs and events, client.py.
DAEMON = {
    *(("batch", "jobs", verb) for verb in ("create", "list", "delete")), ("batch", "jobs/status", "get"),
    *(("", "pods", verb) for verb in ("get", "list", "delete")), ("", "pods/log", "get"), ("", "events", "list"),
}  # fmt: skip
WEBSERVER = {("batch", "jobs", "delete"), ("", "pods", "list"), ("", "pods", "delete")}


def launcher(*backends: str) -> set[tuple[str, str, str, str]]:
    calls = [(kind, verb) for each in ("", *backends) for kind, verbs in CALLS[each].items() for verb in verbs]
    return {(RUNS, RESOURCES[kind].group, RESOURCES[kind].plural, verb) for kind, verb in calls} | {
        (RUNS, "", "pods/log", "get")
    }


def accounts(objects: tuple[Object, ...]) -> list[tuple[str, str]]:
    return [(o["metadata"]["namespace"], o["metadata"]["name"]) for o in of_kind(objects, "ServiceAccount")]


@every_overlay
def test_the_launcher_may_do_what_its_backends_ask(name: str) -> None:
    assert {kind for calls in CALLS.values() for kind in calls} == set(RESOURCES), "say here what the client does"
    assert rights(overlay(name), RUNS, "launcher") == launcher(*OVERLAYS[name]) | ROLLOUT
    assert recipe_of(name).compute.kubernetes is not None
    assert gang_of(name).settings.backend in OVERLAYS[name]


@every_overlay
def test_each_account_has_its_own_rights_and_no_more(name: str) -> None:
    objects = overlay(name)
    given = {account: rights(objects, *account) for account in accounts(objects)}
    assert given[PLATFORM, "daemon"] == {(RUNS, *right) for right in DAEMON}
    assert given[PLATFORM, "webserver"] == {(RUNS, *right) for right in WEBSERVER}
    assert {account[1] for account, each in given.items() if each} == {"launcher", "daemon", "webserver"}
    subjects = {(s["namespace"], s["name"]) for o in of_kind(objects, "RoleBinding") for s in o["subjects"]}
    assert subjects <= set(given), "a binding of somebody that is not here"


@every_overlay
def test_nobody_may_make_what_nothing_bounds(name: str) -> None:
    """Who creates something in the namespace of the gangs is one of the accounts that the policies know."""
    objects = overlay(name)
    makers = {
        account for account in accounts(objects)
        if {verb for space, _, _, verb in rights(objects, *account) if space == RUNS} & {"create", "patch", "update"}
    }  # fmt: skip
    assert makers == {(RUNS, "launcher"), (PLATFORM, "daemon")}
    conditions = str(of_kind(objects, "ValidatingAdmissionPolicy"))
    assert all(f"system:serviceaccount:{space}:{account}" in conditions for space, account in makers)
    assert {o["spec"]["failurePolicy"] for o in of_kind(objects, "ValidatingAdmissionPolicy")} == {"Fail"}
    for binding in of_kind(objects, "ValidatingAdmissionPolicyBinding"):
        assert binding["spec"]["validationActions"][0] == "Deny"
        assert binding["spec"].get("paramRef", {}).get("parameterNotFoundAction", "Deny") == "Deny"


@pytest.mark.slow
@pytest.mark.shared
@pytest.mark.parametrize("backend", sorted(CALLS.keys() - {""}))
def test_a_backend_is_one_line_of_an_overlay(backend: str, tmp_path: Path, shared_data: Path) -> None:
    """With its rights, its own objects, and nothing of the others'."""
    copied = Path(shutil.copytree(MANIFESTS, tmp_path / "manifests"))
    file = copied / "overlays" / "eks-spot-h200" / "kustomization.yaml"
    line = f"- ../../components/{backend} "
    lines = file.read_text().splitlines()
    assert sum(line in each for each in lines) == 1
    chosen = [each.replace("# - ", "- ", 1) if line in each else each for each in lines]
    others = [f"- ../../components/{each} " for each in CALLS if each not in ("", backend)]
    chosen = [each for each in chosen if not any(other in each for other in others)]
    file.write_text("\n".join(chosen))
    objects = objects_of(file.parent)
    assert rights(objects, RUNS, "launcher") - ROLLOUT == launcher(backend)
    assert [obj["metadata"]["name"] for obj in of_kind(objects, "Queue")] == ["training"] * (backend == "volcano")
    assert [result for obj in objects if (result := problems(obj))] == []
