"""Models asked without an iteration: one is scored alone, two are compared as the gate compares, by the same runner and
statistics. Nothing is decided: there is no verdict, no line in the ledger and no bundle."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

from pydantic import ValidationError

from evals import comparison
from evals.evaluate import Asker
from evals.records import ComparedModels, ModelScores, Trial
from evals.suites import suites
from pipeline.core.storage import ModelRef, digest_file
from pipeline.recipe import Evaluation, Recipe
from pipeline.recipe.suites import EMBEDDED, ItemsPreset, ItemsSuite, preset_suite


def section_of(
    names: Sequence[str], files: Sequence[str], changes: Mapping[str, Any], recipe: Recipe | None
) -> Evaluation:
    """The recipe's section, or the defaults, over these suites alone, each for a report. A name is that of one of the
    recipe's suites, else a preset, of which each that needs a file takes the next of `files`, and `changes`.

    Raises ValueError for a suite that there is not, that has no file or no references, or that `changes` do not fit.
    """
    section = Evaluation() if recipe is None else recipe.evaluation
    own = {each.name: each for each in section.asked if isinstance(each, ItemsSuite)} if recipe else {}
    left, chosen = list(files), list[ItemsSuite]()
    for name in dict.fromkeys(names):
        suite = own.get(name) or _preset(name, left, changes, own)
        if suite.check == "none":
            raise ValueError(f"The suite {name} has no references (check: none): name one whose answers are checked.")
        sha256 = suite.sha256
        if not sha256 and Path(suite.path).is_file():
            sha256 = digest_file(Path(suite.path))  # read once, it needs no pin
        chosen.append(suite.model_copy(update={"role": "report", "floor": None, "sha256": sha256}))
    if left:
        raise ValueError(f"No suite takes the file {left[0]}: give one --path for each preset of a file, in its order.")
    return section.model_copy(update={"suites": tuple(chosen)})


def _preset(name: str, left: list[str], changes: Mapping[str, Any], own: Mapping[str, ItemsSuite]) -> ItemsSuite:
    presets = get_args(ItemsPreset)
    if name not in presets:
        choices = f"one of the presets {', '.join(presets)}" + (f" or of the recipe's {', '.join(own)}" if own else "")
        raise ValueError(f"There is no suite {name}. Name {choices}.")
    try:
        return preset_suite(name, **({"path": left.pop(0)} if left and name not in EMBEDDED else {}), **changes)
    except ValidationError as error:
        mistakes = (": ".join((*map(str, each["loc"]), each["msg"])) for each in error.errors())
        raise ValueError(f"The suite {name}: {'; '.join(mistakes)}") from error


def scores(asker: Asker, model: ModelRef) -> ModelScores:
    """Raises what the suites, the engine and the grader do."""
    asked = suites(asker.store, asker.section)
    answered = zip(asked, asker.arms("champion", model, asked), strict=True)
    every = (comparison.score(suite, arm, asker.section.suite(suite.name)) for suite, arm in answered)
    return ModelScores(model=model, scores=tuple(every))


def compared(asker: Asker, champion: ModelRef, candidate: ModelRef) -> ComparedModels:
    """The second model against the first. Raises as `scores`."""
    answered = asker.both(champion, candidate, suites(asker.store, asker.section))
    trial = Trial(level=asker.section.alpha, seed=asker.seed)
    every = (comparison.measure(each.suite, each.arms, asker.section, trial) for each in answered)
    return ComparedModels(champion=champion, candidate=candidate, measurements=tuple(every))
