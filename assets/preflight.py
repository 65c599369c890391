"""A deployment before a run is made of it: what the environment lacks, and what `pipeline.traces.preflight` finds."""

from collections.abc import Container
from pathlib import Path

import dagster as dg

from assets.environment import address_faults, environment
from assets.gate import gate_refusals, readable
from assets.resources import Deployment
from evals.freezing import suite_faults
from k8s.client import connect
from k8s.launch import recipe_refusals
from pipeline.demo import MODEL_DIR
from pipeline.demo.desk.judges import is_desk_judge
from pipeline.models.check import check_once, of_level
from pipeline.traces.preflight import preflight
from pipeline.traces.sources.protocol import address_of

READS_SUITES, TRAINS = LATER = ("preference_dataset", "policy_checkpoint")


def launch_faults(deployment: Deployment) -> list[str]:
    """Why a launch now could not go well, one line each; empty when nothing speaks against it.

    Takes a second or two and writes nothing but a fetched base model. A recipe that does not resolve is told alone."""
    try:
        deployment.recipe()
        if lacks := address_faults():  # an error of what is asked next could show it
            return lacks
        deployment.fetch_base(print)  # where it is there already, a second; else the launch could only fail
        recipe = deployment.recipe()
    except ValueError as error:
        return str(error).splitlines()
    address = warehouse = None
    try:
        address = address_of(recipe.traces, deployment.source_uri())
    except ValueError as error:
        lacks.append(f"traces.source: {error}")
    try:
        lake = deployment.lake()
        warehouse = lake.warehouse
        lake.check_address()
    except ValueError as error:
        lacks.append(f"traces.lake: {error}")
    judge = recipe.rewards.judge
    if judge is not None and deployment.judge_endpoint() is None and not is_desk_judge(judge):
        lacks.append("rewards.judge: set JUDGE_URL to its endpoint (and JUDGE_API_KEY), or remove the section.")
    if recipe.compute.kubernetes is not None:
        try:
            connect(environment().kubeconfig)
        except ValueError as error:
            lacks.append(f"compute.kubernetes: {error}")
    return [*lacks, *preflight(recipe, address, warehouse or "")]


def later_faults(deployment: Deployment, stages: Container[str] = LATER) -> list[str]:
    """What a run with these of the `LATER` stages would only meet after its samples and labels, which may have been
    paid for: suites that cannot be read or frozen, and what speaks against any training. The recipe has to resolve."""
    recipe, store = deployment.recipe(), deployment.store()
    faults = suite_faults(store, recipe.evaluation) if READS_SUITES in stages else []
    if TRAINS in stages:
        section = recipe.evaluation
        asked = [] if faults else [readable(each, store, section.seed) for each in section.asked]
        faults += recipe_refusals(recipe)
        faults += gate_refusals(recipe, recipe.base_model.uri, [each for each in asked if each is not None])
    return faults


def refuse_later_faults(context: dg.AssetExecutionContext, deployment: Deployment) -> None:
    """Raises ValueError with the base model's errors and the `later_faults` of the stages that this run goes on to, one
    line each: a run that no person typed was not checked before."""
    selected = {node.name for node in context.op_execution_context.job_def.nodes}
    model, lora = deployment.champion().model, deployment.recipe().training.lora
    asked = TRAINS in selected and not Path(model.uri).is_relative_to(MODEL_DIR.parent)  # tests ask those
    findings = check_once(deployment.store(), model, lora) if asked else ()
    for text in of_level(findings, "warning"):
        context.log.warning(text)
    if faults := of_level(findings, "error") + later_faults(deployment, selected):
        raise ValueError("\n".join([*faults, "Nothing was read yet. To check again: pt validate"]))
