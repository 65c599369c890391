"""The recipe's section on the user's own reward function, and what can be said against it before it is ever imported.

Owns how a function is named, where its file is looked for, and the digest that stands for its content. Refuses to run
it: that is done in processes that can be killed (`pipeline.rewards.custom`).
"""

from __future__ import annotations

import ast
import hashlib
import json
from importlib.metadata import EntryPoint
from inspect import Parameter, Signature
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt

from pipeline import plugins
from pipeline.locations import Uri
from pipeline.section import Added, Operational, Section

ARGUMENTS = ("prompt", "completion", "reference", "metadata")
EXAMPLE = f"def reward({', '.join(ARGUMENTS)})"


class CustomReward(Section):
    """A Python function of your own that scores completions. It runs with the rights of the pipeline."""

    function: str
    """`path/to/file.py:name`, the path absolute or relative to the recipe's folder, or the name of an entry point of
    the group `preference_tuning.rewards`."""
    digest: str | None = None
    """sha256 of the file, or `distribution==version` of the entry point. Given, anything else is refused; null: what is
    there when the recipe is read. A changed function is another recipe."""
    options: Annotated[dict[str, JsonValue], Added] = Field(default={})
    """Keyword arguments of the function, beside its four."""
    timeout_s: PositiveFloat = 5.0
    """For one completion; then its worker is killed, and the completion has no value."""
    memory_mb: PositiveInt = 3072
    """Address space of a worker, imports included."""
    workers: Annotated[PositiveInt, Operational] = 2
    """Scoring processes of each process that scores."""
    folder: Annotated[Uri, Operational] = ""
    """Folder that a relative path starts at; filled in with the recipe's own."""

    @property
    def file(self) -> Path | None:
        """The file of the function; None for an entry point."""
        path, sign, _ = self.function.rpartition(":")
        return Path(self.folder) / path if sign else None

    @property
    def name(self) -> str:
        """The function's name in its file, or the entry point's."""
        return self.function.rpartition(":")[2]


class Function(NamedTuple):
    """What a worker needs to load the function. `file` is None for an entry point."""

    file: str | None
    name: str
    digest: str
    options: str = ""
    """JSON of its keyword arguments; "" without any."""


def located(custom: CustomReward, folder: Path) -> CustomReward:
    """The section of a recipe in `folder`, with the digest of what is there now. Raises ValueError as `function_of`."""
    begun = custom.model_copy(update={"folder": custom.folder or str(folder.absolute())})
    return begun.model_copy(update={"digest": function_of(begun).digest})


def function_of(custom: CustomReward) -> Function:
    """The function that the section names. Raises ValueError where there is none, or it is not what `digest` says."""
    file = custom.file
    digest = (
        _plugin(custom.name).digest if file is None else _digest_of_file(file, custom.name, frozenset(custom.options))
    )
    if custom.digest is not None and custom.digest != digest:
        raise ValueError(
            f"rewards.custom.digest is {custom.digest}, and {custom.function} is {digest} now. Put back what was "
            "agreed on, or set the digest to the new one and begin a new iteration."
        )
    options = json.dumps(custom.options, sort_keys=True) if custom.options else ""
    return Function(None if file is None else str(file.absolute()), custom.name, digest, options)


def entry_point(name: str) -> EntryPoint:
    """The entry point of that name. Raises ValueError unless there is exactly one."""
    return _plugin(name).point


def _plugin(name: str) -> plugins.InstalledPlugin:
    try:
        return plugins.installed(plugins.REWARDS, name, "rewards.custom.function")
    except ValueError as error:
        raise ValueError(f"{error} For a file of your own, write path/to/file.py:name.") from error


def _digest_of_file(file: Path, name: str, options: frozenset[str]) -> str:
    """sha256 of the file, which is parsed and not run. Raises ValueError where it can't hold such a function."""
    field = f"rewards.custom.function: {file}"
    try:
        source = file.read_bytes()
        tree = ast.parse(source, str(file))
    except OSError as error:
        raise ValueError(
            f"{field} cannot be read ({error.strerror}). Give the path of a Python file, from the recipe's folder on."
        ) from error
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{field} is not Python: {error}. Mend it.") from error
    functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    # Bound in another way: whether it can be called is known where it is imported.
    stored = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
    imports = [each for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) for each in node.names]
    bound = stored | {each.asname or each.name for each in imports}
    if name not in functions and name not in bound:
        raise ValueError(
            f"{field} has no {name!r} (its functions: {', '.join(functions) or 'none'}). "
            f"Name one of them behind the colon; it is written {EXAMPLE}."
        )
    if name in functions and (fault := _fault(functions[name], options)):
        raise ValueError(f"{field}:{name} {fault}. Write it {EXAMPLE}.")
    return hashlib.sha256(source).hexdigest()


def _fault(function: ast.FunctionDef | ast.AsyncFunctionDef, options: frozenset[str]) -> str:
    """What keeps a function from being called with four arguments in their order and these keywords, or ''."""
    if isinstance(function, ast.AsyncFunctionDef):
        return "is asynchronous"
    takes = function.args
    positional = [*takes.posonlyargs, *takes.args]
    needed = len(positional) - len(takes.defaults)
    parameters = [
        Parameter(
            each.arg,
            Parameter.POSITIONAL_ONLY if place < len(takes.posonlyargs) else Parameter.POSITIONAL_OR_KEYWORD,
            default=Parameter.empty if place < needed else None,
        )
        for place, each in enumerate(positional)
    ]
    parameters += [Parameter(takes.vararg.arg, Parameter.VAR_POSITIONAL)] if takes.vararg else []
    parameters += [
        Parameter(each.arg, Parameter.KEYWORD_ONLY, default=Parameter.empty if default is None else None)
        for each, default in zip(takes.kwonlyargs, takes.kw_defaults, strict=True)
    ]
    parameters += [Parameter(takes.kwarg.arg, Parameter.VAR_KEYWORD)] if takes.kwarg else []
    try:
        Signature(parameters).bind(*ARGUMENTS, **dict.fromkeys(options))
    except TypeError:
        names = ", ".join(each.arg for each in [*positional, *takes.kwonlyargs]) or "nothing"
        return f"takes {names}" + (f", and is given the options {', '.join(sorted(options))}" if options else "")
    return ""
