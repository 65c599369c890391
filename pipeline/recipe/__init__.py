"""The recipe: everything that one deployment decides, as one frozen tree read from one YAML file. Functions take the
section or the value that they need. Secrets and endpoints are not in it."""

import os
import shlex
from datetime import date as date_type
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import yaml
from pydantic import Field, ValidationError, model_validator

from pipeline.core.locations import Uri
from pipeline.core.redaction import kept_secrets, redacted
from pipeline.core.storage import digest_json, shown_path
from pipeline.recipe.compute import Accelerator, Automation, Compute, Kubernetes, Retention
from pipeline.recipe.custom import located
from pipeline.recipe.rewards import Judge, Rewards
from pipeline.recipe.rollout import Rollout
from pipeline.recipe.section import Line, Operational, Section, settings
from pipeline.recipe.selection import Samples, Selection
from pipeline.recipe.suites import Evaluation
from pipeline.recipe.traces import Traces
from pipeline.recipe.training import (
    Checkpoints,
    Distribution,
    Lora,
    Sentinel,
    Training,
    TrainingSettings,
    Validation,
)

__all__ = [
    "Accelerator", "Automation", "BaseModelSection", "ChatSettings", "Checkpoints", "Compute", "Distribution",
    "Evaluation",
    "Kubernetes", "Lora", "Recipe", "Rewards", "Rollout", "Samples", "Selection", "Sentinel", "Traces", "Training",
    "TrainingSettings", "Validation", "load", "override_tree",
]  # fmt: skip

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
"""Becomes part of paths, of filters and of names elsewhere."""


class ChatSettings(Section):
    """Written into the chat template of a copy of the base under the data root: samples, training, evaluation and
    serving render the same text, and a model that is exported keeps it. A promoted model keeps the settings that it was
    trained with."""

    template: Uri | None = None
    """File with a Jinja chat template instead of the model's own."""
    system: Literal["keep", "merge_into_user", "refuse"] = "keep"
    """keep: the template gets system messages, and rows of one that it drops or refuses stop the run. merge_into_user:
    the system message stands before the first user message, with an empty line between them. refuse: none is taken."""
    thinking: bool | None = None
    """The template's switch for reasoning (`enable_thinking`, `thinking`); null: its default."""
    date: date_type | None = None
    """Day that the template writes where it would write the date, such as 2026-01-31: prompts are the same tomorrow."""


class BaseModelSection(Section):
    name: Name
    """Registered model name in MLflow; also names the rollout. Letters, digits, dot, dash and underscore."""
    uri: Uri
    """Directory with config.json, weights and tokenizer: the first champion. Or `models:/NAME@alias`, `models:/NAME/3`
    in MLflow's registry, `hf://ORG/NAME@revision` on the Hugging Face Hub: those are fetched to below the data root
    when an iteration may begin, which keeps the digest of what it began with."""
    chat: ChatSettings = ChatSettings()
    """How conversations are rendered; pt models check says what a model needs."""


Prefix = Annotated[str, Field(pattern=r"^[A-Za-z0-9]+(_[A-Za-z0-9]+)*$", max_length=60)]
"""Letters and digits, with single underscores between them: names of Dagster follow after two."""


class Recipe(Section):
    """One deployment. Relative paths are relative to the working directory."""

    name: Annotated[Line, Operational]
    """Name of the deployment, for reports. A recipe in jobs/recipes/ has the name of its file."""
    key_prefix: Annotated[Prefix | None, Operational] = None
    """First part of the keys of assets and name of the code location, where several models share one Dagster."""
    data_root: Annotated[Uri, Operational] = "data"
    """Everything that the loop writes outside Dagster's own `.dagster/`, in a folder of its own: no project, home or
    whole disk."""
    base_model: Annotated[BaseModelSection, Operational]
    """The first champion: what serves before the first promotion, and what the first candidate is trained from."""
    traces: Traces
    """Where traces come from, which of them may be learned from, and how long they are kept."""
    rewards: Rewards = Rewards()
    """What a completion is worth, and what a check may cost."""
    samples: Samples | None = None
    """Fresh completions of logged prompts, for signals without reference answers; null: none are drawn."""
    selection: Selection = Selection()
    """Which method is trained, and the evidence that it needs."""
    training: Training = Training()
    """The methods' settings, and how a training is distributed, watched and saved."""
    evaluation: Evaluation = Evaluation()
    """What the gate asks, and how sure it has to be."""
    rollout: Annotated[Rollout, Operational] = Rollout()
    """How a candidate that passed the gate gets its traffic, and what takes it back."""
    compute: Annotated[Compute, Operational] = Compute()
    """Where the work runs, and what that costs."""
    automation: Annotated[Automation, Operational] = Automation()
    """When the loop starts by itself."""
    retention: Annotated[Retention, Operational] = Retention()
    """How much of old iterations and runs is kept."""
    accept_demo_suite: Annotated[bool, Operational] = False
    """A person lets the embedded arithmetic suite gate a model that is not the embedded one: without this, nothing of
    such a model is trained."""

    answers_in_mlflow: Annotated[bool, Operational] = False
    """The iteration's run in MLflow shows questions and both models' answers side by side, of suites without users:
    what comes from traces or has a user stays in the evidence. false: the run has the shares of right answers alone."""

    @model_validator(mode="after")
    def _prompts_are_answered(self) -> Self:
        if self.traces.source.kind == "prompts" and self.samples is None:
            raise ValueError(
                "traces.source is a set of prompts without answers, and nothing draws any. Add a section samples, such "
                "as samples: {prompts: 512, per_prompt: 8}."
            )
        return self

    @model_validator(mode="after")
    def _holds_no_secret(self) -> Self:
        if faults := list(kept_secrets(self.model_dump())):
            raise ValueError(f"{'. '.join(faults)}. A recipe is kept with every run: take them out.")
        return self

    @property
    def gate_judge(self) -> Judge | None:
        """Who judges the judged suites; None where there are none."""
        return (self.evaluation.judge or self.rewards.judge) if self.evaluation.judged else None

    def digest(self) -> str:
        """sha256 of what decides an iteration's result: not where things lie or run, nor how it is rolled out."""
        return digest_json(settings(self, Operational))


def load(path: str | Path, overrides: list[str] | None = None) -> Recipe:
    """Read a recipe and apply overrides such as `training.seed=3` (the value is YAML).

    Raises ValueError that names the file, each wrong field, and what was expected there.
    """
    file = Path(path)
    if not file.is_file():
        raise ValueError(f"No recipe at {shown_path(file)}. To begin with: jobs/recipes/own.yaml.")
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise ValueError(f"{file} is not YAML: {error}") from error
    if not isinstance(tree, dict):
        raise ValueError(f"{file} holds {type(tree).__name__}, not a mapping. Start from jobs/recipes/embedded.yaml.")
    for override in overrides or []:
        _apply(tree, override)
    try:
        recipe = Recipe.model_validate(tree)
        if problem := data_root_problem(recipe.data_root):
            raise ValueError(f"data_root: {problem}")
        return located(recipe, file.parent)
    except ValidationError as error:
        mistakes = "\n".join(_mistakes(error, tree))
        raise ValueError(f"{file} does not resolve; change these fields:\n{mistakes}") from error
    except ValueError as error:
        raise ValueError(f"{file} does not resolve: {error}") from error


def override_tree(overrides: list[str]) -> dict[str, Any]:
    """What overrides set, without a recipe. Raises ValueError as `load` does for them."""
    tree: dict[str, Any] = {}
    for override in overrides:
        _apply(tree, override)
    return tree


def split_overrides(text: str) -> list[str]:
    """Overrides out of one text, as a shell divides words. Raises ValueError for an open quote."""
    try:
        return shlex.split(text)
    except ValueError as error:
        problem = f"PREFERENCE_TUNING_OVERRIDES {redacted(text)!r}: {error}"
        raise ValueError(f"{problem}. Write a value with spaces like base_model.uri='/models/my model'.") from error


def data_root_problem(data_root: str) -> str:
    """Why nothing may be written, swept or erased there; "" where it may. The folder need not exist yet."""
    if data_root.startswith("~"):
        return f"{data_root} is a shell's short form. Write the path in full."
    place = Path(data_root).resolve()
    what = ""
    if place.exists() and not place.is_dir():
        what = "no folder"
    elif held := [name for name in (".git", "pyproject.toml", "dagster.yaml") if (place / name).exists()]:
        what = f"a project (it holds {held[0]})"
    elif place == Path.home().resolve() or os.path.ismount(place):
        what = "a home or a whole disk"
    return f"{place} is {what}. Name a folder of its own below it, such as {place / 'data'}." if what else ""


def _apply(tree: dict[str, Any], override: str) -> None:
    """Put the value of `KEY=VALUE` into the tree; `suites.0.items` leads into the first element of a list."""
    key, sign, text = override.partition("=")
    shown = redacted(override)
    if not sign:
        raise ValueError(f"Override {shown!r} is not KEY=VALUE. Write it like training.seed=3.")
    *parents, leaf = key.strip().split(".")
    node: Any = tree
    try:
        for name in parents:
            if isinstance(node, dict) and node.get(name) is None:  # left out, or empty
                node[name] = {}
            node = node[int(name) if isinstance(node, list) else name]
        node[leaf] = yaml.safe_load(text)
    except (TypeError, LookupError) as error:
        raise ValueError(f"Override {shown!r} leads through a value, or to no element of a list.") from error
    except (ValueError, yaml.YAMLError) as error:
        raise ValueError(f"Override {shown!r}: the value is not YAML: {redacted(str(error))}") from error


def _mistakes(error: ValidationError, tree: Any) -> list[str]:
    """One line for each mistake, with the path of its field in the tree: pydantic's has the kinds of unions too."""
    lines: list[str] = []
    for each in error.errors():
        node: Any = tree
        names: list[str] = []
        for place, name in enumerate(each["loc"], start=1):
            is_field = isinstance(node, dict) and name in node and name != node.get("kind")
            is_field = is_field or (isinstance(node, list) and isinstance(name, int))
            if is_field or place == len(each["loc"]):
                names.append(str(name))
            node = cast(Any, node)[name] if is_field else node
        path, message = ".".join(names) or "the recipe", each["msg"].removeprefix("Value error, ")
        if each["type"] == "extra_forbidden":
            message = "there is no such field"
        elif each["type"] not in ("missing", "value_error", "union_tag_invalid", "union_tag_not_found"):
            message += f" (got {str(each['input'])[:80]!r})"
        lines.append(f"  {path}: {redacted(message)}")
    return lines
