"""Why the gate could pass nothing, or its verdict mean nothing, as far as it can be known before a training."""

from collections.abc import Sequence

from assets.environment import environment
from evals.fit import this_machine, too_large
from evals.power import EMBEDDED_MODEL, UNKNOWN_MODEL, judge_refusals, model_refusals, shortfalls
from evals.suites import Suite, frozen, lines, suite
from k8s.launch import machine
from pipeline.core.storage import Store
from pipeline.demo import MODEL_DIR, desk, has_weights_of
from pipeline.demo.desk.judges import is_desk_judge
from pipeline.demo.suite import suite_text
from pipeline.recipe import Recipe
from pipeline.recipe.suites import ItemsSuite, SuiteSection
from pipeline.serving.engines import check_addresses


def readable(section: SuiteSection, store: Store, seed: int) -> Suite | None:
    """The suite as a run will ask it, the demo's before its first stage writes it; None where it is yet to be frozen.
    Raises ValueError where it cannot be read."""
    if not isinstance(section, ItemsSuite):
        return suite(store, section, seed) if frozen.latest(store, section.name) is not None else None
    if not section.embedded:
        return suite(store, section, seed)
    items = lines.parse_embedded(suite_text(section, seed).encode())
    return Suite(name=section.name, items=items, system=section.system, instruction=section.instruction)


def gate_refusals(recipe: Recipe, base: str, suites: Sequence[Suite]) -> list[str]:
    """Why no verdict of the gate over these suites could be meant, or pass, for a model trained on top of `base` (a
    directory)."""
    section, models = recipe.evaluation, (recipe.base_model.uri, base)
    is_demo = any(has_weights_of(MODEL_DIR, each) for each in models)
    refusals = shortfalls(suites, section, EMBEDDED_MODEL if is_demo else UNKNOWN_MODEL)
    refusals += judge_refusals(recipe, bool(environment().judge_url) or is_desk_judge(recipe.gate_judge))
    if section.serving.kind != "endpoint":  # a server has its own template and context
        refusals += model_refusals(suites, section, base)
    where = this_machine()
    if recipe.compute.evaluation is not None:  # it has addresses and environments of its own
        where = machine(recipe.compute)
    else:
        refusals += address_refusals(recipe)
    if large := too_large(section.serving, base, where):
        refusals.append(
            f"{large}. Set evaluation.serving to {{kind: endpoint, champion: NAME, candidate: NAME}} for a server of "
            "your own, or take a larger machine (compute.evaluation runs it on a node of the cluster)."
        )
    home = {"arithmetic": MODEL_DIR, "desk": desk.MODEL_DIR}
    gating = [each for each in section.suites if each.role != "report" and isinstance(each, ItemsSuite)]
    embedded = [(each, home[each.preset]) for each in gating if each.preset in home]
    away = [each for each, own in embedded if not any(has_weights_of(own, model) for model in models)]
    if away and not recipe.accept_demo_suite:
        refusals.append(
            f"the gate's suite {away[0].name} asks what the embedded model was made for, and base_model.uri is another "
            "model: its verdict would say nothing of it. List suites of your own task in evaluation.suites "
            "(docs/evaluation.md), or set accept_demo_suite: true in the recipe where its task is what you tune "
            "for."
        )
    return refusals


def address_refusals(recipe: Recipe) -> list[str]:
    try:
        check_addresses(recipe.evaluation.serving, environment().serving)
    except ValueError as error:
        return [str(error)]
    return []
