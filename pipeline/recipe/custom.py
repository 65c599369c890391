"""The recipe's section on the user's own reward function, and what can be said against it before it is ever imported.

Owns how a function is named, where its file is looked for, and the digest that stands for its content. Refuses to run
it: that is done in processes that can be killed (`pipeline.rewards.custom`).
"""

from __future__ import annotations

import ast
import hashlib
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Annotated, NamedTuple

from pydantic import PositiveFloat, PositiveInt

from pipeline.locations import Uri
from pipeline.section import Operational, Section

GROUP = "preference_tuning.rewards"
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


def located(custom: CustomReward, folder: Path) -> CustomReward:
    """The section of a recipe in `folder`, with the digest of what is there now. Raises ValueError as `function_of`."""
    begun = custom.model_copy(update={"folder": custom.folder or str(folder.absolute())})
    return begun.model_copy(update={"digest": function_of(begun).digest})


def function_of(custom: CustomReward) -> Function:
    """The function that the section names. Raises ValueError where there is none, or it is not what `digest` says."""
    file = custom.file
    digest = _digest_of_entry_point(custom.name) if file is None else _digest_of_file(file, custom.name)
    if custom.digest is not None and custom.digest != digest:
        raise ValueError(
            f"rewards.custom.digest is {custom.digest}, and {custom.function} is {digest} now. Put back what was "
            "agreed on, or set the digest to the new one and begin a new iteration."
        )
    return Function(None if file is None else str(file.absolute()), custom.name, digest)


def entry_point(name: str) -> EntryPoint:
    """The entry point of that name. Raises ValueError unless there is exactly one."""
    points = entry_points(group=GROUP)
    matching = [point for point in points if point.name == name]
    if len(matching) != 1:
        names = ", ".join(sorted(point.name for point in points)) or "none at all"
        raise ValueError(
            f"rewards.custom.function {name!r}: {len(matching)} installed packages have an entry point of that name in "
            f"the group {GROUP} (there: {names}). Install the one that has it, or write path/to/file.py:name."
        )
    return matching[0]


def _digest_of_entry_point(name: str) -> str:
    distribution = entry_point(name).dist
    assert distribution is not None, "entry points of installed packages have one"
    return f"{distribution.name}=={distribution.version}"


def _digest_of_file(file: Path, name: str) -> str:
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
    if name in functions and (fault := _fault(functions[name])):
        raise ValueError(f"{field}:{name} {fault}. Write it {EXAMPLE}.")
    return hashlib.sha256(source).hexdigest()


def _fault(function: ast.FunctionDef | ast.AsyncFunctionDef) -> str:
    """What keeps a function from being called with four arguments in their order, or ''."""
    if isinstance(function, ast.AsyncFunctionDef):
        return "is asynchronous"
    takes = function.args
    positional = len(takes.posonlyargs) + len(takes.args)
    required = positional - len(takes.defaults)
    unnamed = [each.arg for each, default in zip(takes.kwonlyargs, takes.kw_defaults, strict=True) if default is None]
    if required > len(ARGUMENTS) or (positional < len(ARGUMENTS) and takes.vararg is None) or unnamed:
        return f"takes {', '.join(each.arg for each in takes.posonlyargs + takes.args + takes.kwonlyargs) or 'nothing'}"
    return ""
