"""One look at a deployment before anything is paid: `pt validate` prints it, a launch that a person typed and the first
step of every run refuse by it."""

from collections.abc import Container, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import dagster as dg

from assets.environment import address_faults, environment
from assets.gate import gate_refusals, readable
from assets.records import RECORDS
from assets.resources import Deployment
from evals.base_check import check_base, check_once
from evals.freezing import unfreezable
from evals.rollout_plan import DAY_S, plan_lines
from evals.suites import Suite
from k8s.client import connect
from k8s.launch import recipe_refusals
from pipeline.core.storage import Store
from pipeline.demo import MODEL_DIR
from pipeline.demo.desk.judges import is_desk_judge
from pipeline.places.checks import Places, file_lines, place_faults
from pipeline.recipe import Recipe
from pipeline.recipe.sources import DemoSource
from pipeline.recipe.suites import TracesSuite
from pipeline.rollout.policy import policy_of
from pipeline.rollout.production import requests_a_day
from pipeline.serving.adapters import unservable_recipe
from pipeline.traces.context import Log
from pipeline.traces.detect import wrong_kind
from pipeline.traces.sources.protocol import Address, address_of

STAGES = (*RECORDS, "canary")


class CheckedLine(NamedTuple):
    """One thing that was looked at."""

    fine: bool
    text: str


Lines = Iterator[CheckedLine]


def fine(text: str) -> CheckedLine:
    return CheckedLine(True, text)


def problem(text: str) -> CheckedLine:
    return CheckedLine(False, text)


def check(deployment: Deployment, stages: Container[str] = STAGES, log: Log = print) -> Lines:
    """One line for each thing that these stages need, as it is known. Places are tried by what the stages do there, and
    left as they were; a base model that is named by an address is fetched. Seconds."""
    try:
        deployment.recipe()
        if lacks := address_faults():  # an error of what is asked next could show it
            yield from map(problem, lacks)
            return
        deployment.fetch_base(log)
        recipe, store = deployment.recipe(), deployment.store()
    except ValueError as error:
        yield from map(problem, str(error).splitlines())
        return
    yield fine(f"{deployment.recipe_path} resolves: {recipe.name}, digest {recipe.digest()[:12]}")
    lacks = list[str]()
    places = _places(deployment, recipe, stages, lacks)
    yield from map(problem, lacks := [*lacks, *place_faults(recipe, places)])
    if not lacks:
        yield fine(f"tried by what a run does there: {', '.join(places.names)}")
    if not lacks and (wrong := wrong_kind(recipe.traces.source)):
        yield fine(f"traces.source: warning: {wrong}")
    if "policy_checkpoint" in stages:
        yield from _base(deployment, recipe)
    if "canary" in stages:
        yield from _rollout(recipe, None if lacks else places.source)
    if "policy_checkpoint" in stages:
        yield from map(problem, recipe_refusals(recipe))
    if "preference_dataset" in stages:
        yield from _gate(recipe, store)


def source_lines(deployment: Deployment) -> Lines:
    """What the files of a local source hold, where it was found to be there."""
    with suppress(ValueError):  # `check` has said why
        address = address_of(deployment.recipe().traces, deployment.source_uri())
        if "://" not in address.uri and address.section.kind != "demo":
            yield from (fine(f"traces.source: {line}") for line in file_lines(address))


def refuse_faults(context: dg.AssetExecutionContext, deployment: Deployment) -> None:
    """Raises ValueError with what speaks against the stages of this run, where this step is its first."""
    selected = [stage for stage in STAGES if stage in stages_of(context)]
    if not context.op_execution_context.op.name.endswith(selected[0]):
        return
    lines = list(check(deployment, selected, context.log.info))
    for line in lines:
        if line.fine and "warning: " in line.text:
            context.log.warning(line.text)
    if faults := [line.text for line in lines if not line.fine]:
        raise ValueError("\n".join([*faults, "Nothing was read yet. To check again: pt validate"]))


def stages_of(context: dg.AssetExecutionContext) -> set[str]:
    """The stages of the run, without the recipe's `key_prefix`."""
    steps = context.run.step_keys_to_execute or [node.name for node in context.op_execution_context.job_def.nodes]
    return {step.rpartition("__")[2] for step in steps}


def _places(deployment: Deployment, recipe: Recipe, stages: Container[str], lacks: list[str]) -> Places:
    """`lacks`: takes what the environment does not say."""
    source, lake, read = None, None, environment()
    try:
        source = address_of(recipe.traces, deployment.source_uri()) if "traces" in stages else None
    except ValueError as error:
        lacks.append(f"traces.source: {error}")
    try:
        deployment.lake().check_address()
        lake = deployment.lake()
    except ValueError as error:
        lacks.append(f"traces.lake: {error}")
    if recipe.compute.kubernetes is not None:
        try:
            connect(read.kubeconfig)
        except ValueError as error:
            lacks.append(f"compute.kubernetes: {error}")
    endpoints, judge = {}, deployment.judge_endpoint()
    if (asked := recipe.rewards.judge) is not None and not is_desk_judge(asked):
        if judge is not None:
            endpoints["JUDGE"] = judge
        elif "reward_labels" in stages:
            lacks.append("rewards.judge: set JUDGE_URL to its endpoint (and JUDGE_API_KEY), or remove the section.")
    if recipe.evaluation.serving.kind == "endpoint" and read.serving.endpoint.url:
        endpoints["SERVING"] = read.serving.endpoint
    records = "policy_checkpoint" in stages or "model_version" in stages
    written = {"training.checkpoints.mirror": recipe.training.checkpoints.mirror} if records else {}
    written |= {"rollout.export_to": recipe.rollout.export_to} if "canary" in stages else {}
    stores = {field: uri for field, uri in written.items() if uri}
    return Places(source, lake, stores, deployment.mlflow() if records else None, endpoints)


def _base(deployment: Deployment, recipe: Recipe) -> Lines:
    folder, lora, store = Path(recipe.base_model.uri).absolute(), recipe.training.lora, deployment.store()
    if folder.is_relative_to(MODEL_DIR.parent):  # tests ask those
        return
    kept = folder.is_dir() and store.root.exists()
    findings = check_once(store, deployment.champion().model, lora) if kept else check_base(folder, lora)
    for each in findings:
        level = "" if each.level == "ok" else f"{each.level}: "
        yield CheckedLine(each.level != "error", f"base_model.uri: {each.question}: {level}{each.text}")


def _rollout(recipe: Recipe, source: Address | None) -> Lines:
    """How long a rollout takes with the source's traffic, and what it shows."""
    section = recipe.rollout
    if section.traffic.kind == "none":
        return
    a_day = None if source is None else requests_a_day(source)
    if isinstance(recipe.traces.source, DemoSource):
        a_day = section.requests_per_look * DAY_S / section.look_every_s
    try:
        yield from map(fine, plan_lines(policy_of(section), a_day))
    except ValueError as error:
        yield problem(str(error))
    alone = unservable_recipe(recipe.training.lora)
    if section.traffic.kind == "inference_pool" and alone:
        yield problem(f"rollout.traffic is inference_pool: {alone}. Set rollout.traffic: {{kind: http_route}}.")
    if section.traffic.kind == "gateway" and section.traffic.arms == "adapters":
        shared = "rollout: the candidate is served as an adapter, by the champion's server"
        yield fine(f"rollout: the candidate gets a server of its own: {alone}" if alone else shared)


def _gate(recipe: Recipe, store: Store) -> Lines:
    section = recipe.evaluation
    asked: list[Suite] = []
    for each in section.asked:
        try:
            if (read := readable(each, store, section.seed)) is not None:
                asked.append(read)
            elif isinstance(each, TracesSuite):
                if (why := unfreezable(store, each)) and each.name in section.gating:
                    raise ValueError(why)
                then = f"not asked yet. {why}" if why else "preference_dataset will freeze it"
                yield fine(f"suite {each.name} ({each.role}): {then}")
        except ValueError as error:
            yield problem(f"suite {each.name}: {error}")
    refusals = gate_refusals(recipe, recipe.base_model.uri, asked)
    yield from (problem(f"evaluation: {refusal}") for refusal in refusals)
    for each in asked if not refusals else ():
        yield fine(f"suite {each.name} ({section.suite(each.name).role}): {len(each.items):,} items")
