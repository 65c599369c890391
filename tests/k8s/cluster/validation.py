"""What the API server refuses in an object: names, labels, what may not change, unknown fields."""

from __future__ import annotations

import json
import re

from .kinds import CUSTOM, KINDS, Object, Refused

LABEL = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
SUBDOMAIN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
QUALIFIED = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]")
PATH_SEGMENT = {"Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"}
NAMED_BY_LABEL = {"Namespace", "Service"}


def invalid(kind: str, name: str, problems: list[tuple[str, str]]) -> Refused:
    """422 for these (field, complaint); `kind`: in KINDS, or as the message shall name it."""
    causes = [{"reason": "FieldValueInvalid", "message": text, "field": at} for at, text in problems]
    texts = [f"{at}: {text}" for at, text in problems]
    listed = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    qualified = KINDS[kind].qualified if kind in KINDS else kind
    short, _, group = qualified.partition(".")
    message = f"{qualified} {json.dumps(name, ensure_ascii=False)} is invalid: {listed}"
    return Refused(422, "Invalid", message, {"name": name, "group": group, "kind": short, "causes": causes})


def check_metadata(kind: str, obj: Object) -> None:
    """Raises Refused 422 for a name, a label or an annotation that no object may have."""
    meta, problems = obj["metadata"], list[tuple[str, str]]()
    name = str(meta.get("name", ""))
    if kind in PATH_SEGMENT:
        fits = name not in (".", "..") and not re.search("[/%]", name)
    elif kind in NAMED_BY_LABEL:
        fits = bool(LABEL.fullmatch(name)) and not (kind == "Service" and name[:1].isdigit())
    else:
        fits = len(name) <= 253 and bool(SUBDOMAIN.fullmatch(name))
    if not fits:
        what = "label" if kind in NAMED_BY_LABEL else "subdomain"
        problems.append(
            ("metadata.name", _no(name, f"a lowercase RFC 1123 {what}", "lower case alphanumeric characters"))
        )
    for where in ("labels", "annotations"):
        for key, value in (meta.get(where) or {}).items():
            prefix, slash, last = key.rpartition("/")
            if not QUALIFIED.fullmatch(last) or (slash and not (len(prefix) <= 253 and SUBDOMAIN.fullmatch(prefix))):
                problems.append((f"metadata.{where}", _no(key, "name part", "alphanumeric characters")))
            if not isinstance(value, str):
                text = f"json: cannot unmarshal {json.dumps(value)} into Go value of type string"
                raise Refused(400, "BadRequest", text)
            if where == "labels" and value and not QUALIFIED.fullmatch(value):
                problems.append(("metadata.labels", _no(value, "a valid label", "alphanumeric characters")))
    if sum(len(k.encode()) + len(v.encode()) for k, v in (meta.get("annotations") or {}).items()) > 256 * 1024:
        problems.append(("metadata.annotations", "Too long: may not be more than 262144 bytes"))
    for finalizer in meta.get("finalizers") or []:
        if not QUALIFIED.fullmatch(finalizer.rpartition("/")[2]):
            problems.append(("metadata.finalizers", _no(finalizer, "name part", "alphanumeric characters")))
    if problems:
        raise invalid(kind, name, problems)


def _no(value: str, what: str, made_of: str) -> str:
    rule = f"must consist of {made_of}, '-' or '.', and must start and end with an alphanumeric character"
    return f"Invalid value: {json.dumps(value)}: {what} {rule}"


def check_change(kind: str, old: Object, new: Object) -> None:
    """Raises Refused for a change of what may not change: 422 from the API server, 403 from JobSet's webhook."""
    was, now, name = old.get("spec") or {}, new.get("spec") or {}, new["metadata"]["name"]

    def frozen(field: str) -> list[tuple[str, str]]:
        if was.get(field) == now.get(field):
            return []
        return [(f"spec.{field}", f"Invalid value: {json.dumps(now.get(field))}: field is immutable")]

    if kind == "Job":
        problems = frozen("selector") + frozen("completionMode") + frozen("podFailurePolicy") + frozen("successPolicy")
        # Elastic indexed jobs: completions may change together with parallelism.
        elastic = now.get("completionMode") == "Indexed" and now.get("completions") == now.get("parallelism")
        problems += [] if elastic else frozen("completions")
        problems += frozen("template") if not _same_template(was, now) else []
        if problems:
            raise invalid(kind, name, problems)
    if kind == "JobSet":
        fields = ("failurePolicy", "network", "startupPolicy", "successPolicy", "volumeClaimPolicies")
        changed = [
            # A rule that compares with the old value is asked only where there are both.
            (f"spec.{f}", "Invalid value: Value is immutable")
            for f in fields
            if f in was and f in now and was[f] != now[f]
        ]
        if changed:
            raise invalid(kind, name, changed)
        old_jobs, new_jobs = was.get("replicatedJobs") or [], now.get("replicatedJobs") or []
        same = len(old_jobs) == len(new_jobs) and all(
            _same_replicated(was, o, n) for o, n in zip(old_jobs, new_jobs, strict=True)
        )
        if not same:
            at = f"spec.replicatedJobs: Invalid value: {json.dumps(new_jobs)}: field is immutable"
            raise Refused(403, "Forbidden", f'admission webhook "vjobset.kb.io" denied the request: {at}')
    if kind == "Pod":
        volatile = {
            "activeDeadlineSeconds",
            "tolerations",
            "terminationGracePeriodSeconds",
            "nodeName",
            "schedulingGates",
        }
        images = {"containers", "initContainers"}
        rest = [{k: v for k, v in spec.items() if k not in volatile | images} for spec in (was, now)]
        same = rest[0] == rest[1] and all(_without_images(was.get(f)) == _without_images(now.get(f)) for f in images)
        same = same and was.get("nodeName") in (None, "", now.get("nodeName"))
        if not same:
            raise invalid(
                kind,
                name,
                [("spec", "Forbidden: pod updates may not change fields other than `spec.containers[*].image`")],
            )


def _without_images(containers: list[Object] | None) -> list[Object]:
    return [{k: v for k, v in c.items() if k != "image"} for c in containers or []]


def _same_template(was: Object, now: Object) -> bool:
    """The pod templates of two jobs' specs; of a suspended one scheduling directives and metadata may change."""
    old, new = was.get("template") or {}, now.get("template") or {}
    if not was.get("suspend"):
        return old == new
    free = {"nodeSelector", "tolerations", "affinity", "schedulingGates"}
    strip = [{k: v for k, v in (t.get("spec") or {}).items() if k not in free} for t in (old, new)]
    return strip[0] == strip[1]


def _same_replicated(was: Object, old: Object, new: Object) -> bool:
    specs = [dict(j.get("template", {}).get("spec") or {}) | {"suspend": was.get("suspend")} for j in (old, new)]
    rest = [{k: v for k, v in j.items() if k != "template"} for j in (old, new)]
    outer = [{k: v for k, v in s.items() if k != "template"} for s in specs]
    return rest[0] == rest[1] and outer[0] == outer[1] and _same_template(specs[0], specs[1])


def must_name_its_version(kind: str) -> bool:
    """Custom resources are not replaced without a resourceVersion."""
    return kind in CUSTOM
