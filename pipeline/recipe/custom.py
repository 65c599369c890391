"""Code of the user's own that the recipe names: the digest of its content, and its import, which reading a recipe does
not need. Code of a file is run from the bytes that its digest was made of."""

import hashlib
import inspect
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import packages_distributions, version
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, TypeVar

from pydantic import Field, JsonValue, PositiveFloat, PositiveInt

from pipeline.core.storage import digest_json
from pipeline.recipe.section import Operational, Section


class CustomCode(Section):
    """Code of your own (docs/custom.md). It runs in the pipeline's processes, with their rights."""

    code: Annotated[str, Field(pattern=r"^\S.*:[A-Za-z_]\w*$"), Operational]
    """`path/to/file.py:NAME`, from the recipe's folder on, or `module:NAME` of an installed package."""
    options: dict[str, JsonValue] = Field(default={})
    """Keyword arguments of the class or function; no secrets."""
    digest: str | None = None
    """NAME and the sha256 of the file; of an installed package `module:NAME` and the package's version. Given, other
    code is refused; null: what is there when the recipe is read. Changed code is another recipe."""

    @property
    def identity(self) -> str:
        """Of the code and its options. Raises ValueError as `digest_of`."""
        return digest_json([self.digest or digest_of(self.code), self.options])


class CustomReward(CustomCode):
    """A Python function of your own that scores completions."""

    timeout_s: PositiveFloat = 5.0
    """For one completion; then its worker is killed, and the completion has no value."""
    memory_mb: PositiveInt = 3072
    """Address space of a worker, imports included."""
    workers: Annotated[PositiveInt, Operational] = 2
    """Scoring processes of each process that scores."""


S = TypeVar("S", bound=Section)


def located(section: S, folder: Path, field: str = "") -> S:
    """The section of a recipe in `folder`, its custom code with absolute paths and the digests of what is there.

    `field`: where the section stands in the recipe. Raises ValueError where code is missing, or is not what its digest
    says.
    """
    changes: dict[str, Any] = {}
    for name in type(section).model_fields:
        value, below = getattr(section, name), f"{field}.{name}" if field else name
        if isinstance(value, Section):
            changes[name] = located(value, folder, below)
        elif isinstance(value, tuple):
            members: tuple[Any, ...] = value
            changes[name] = tuple(
                located(each, folder, below) if isinstance(each, Section) else each for each in members
            )
    if isinstance(section, CustomCode):
        place, _, name = section.code.rpartition(":")
        code = f"{(folder / place).absolute()}:{name}" if place.endswith(".py") else section.code
        try:
            changes |= {"code": code, "digest": _agreed(code, section.digest, digest_of(code))}
        except ValueError as error:
            raise ValueError(f"{field}.code: {error}") from error
    changes = {name: value for name, value in changes.items() if value != getattr(section, name)}
    return section.model_copy(update=changes) if changes else section


def digest_of(code: str) -> str:
    """What stands for the content of code, which is not run. Raises ValueError where there is none."""
    place, _, name = code.rpartition(":")
    if place.endswith(".py"):
        return _file_digest(name, _source(place))
    if not (owners := _owners(place.partition(".")[0])):
        raise ValueError(
            f"no installed package has the module {place}. Install one that has it, or give path/to/file.py:{name}."
        )
    return f"{code} {', '.join(f'{owner}=={version(owner)}' for owner in owners)}"


def load_code(code: str, digest: str | None = None) -> Any:
    """The class or function. Raises ValueError where it cannot be imported, or is not what the digest says."""
    place, _, name = code.rpartition(":")
    source = _source(place) if place.endswith(".py") else None
    if digest is not None:
        _agreed(code, digest, digest_of(code) if source is None else _file_digest(name, source))
    try:
        return getattr(import_module(place) if source is None else _module(place, source), name)
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:  # the boundary to code of others
        raise ValueError(
            f"{code} cannot be imported ({type(error).__name__}: {error}). Mend it, or install what it imports."
        ) from error


def create(section: CustomCode, *arguments: Any) -> Any:
    """What the code returns for these arguments, with the options as keywords. Raises ValueError as `load_code`, and
    where it does not take them."""
    factory = load_code(section.code, section.digest)
    check_call(section.code, factory, arguments, section.options)
    return factory(*arguments, **section.options)


def check_call(code: str, function: Any, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> None:
    """Raises ValueError where a function does not take these arguments and options."""
    try:
        inspect.signature(function).bind(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{code} cannot be called ({error}). Change it, or its options in the recipe.") from error
    except ValueError:  # written in C: it says nothing of its arguments
        pass


@cache
def _owners(package: str) -> list[str]:
    """The distributions that have an importable package; finding them reads the records of all that are installed."""
    return sorted(set(packages_distributions().get(package, ())))


def _agreed(code: str, digest: str | None, found: str) -> str:
    if digest not in (None, found):
        raise ValueError(
            f"{code} has the digest {found!r} now, and {digest!r} was agreed on. Put it back, or change the digest and "
            "begin a new iteration."
        )
    return found


def _source(place: str) -> bytes:
    try:
        return Path(place).read_bytes()
    except OSError as error:
        raise ValueError(
            f"{place} cannot be read ({error.strerror}). Give the path of a Python file, from the recipe's folder on."
        ) from error


def _file_digest(name: str, source: bytes) -> str:
    return f"{name} {hashlib.sha256(source).hexdigest()}"


def _module(place: str, source: bytes) -> ModuleType:
    module = ModuleType(f"custom_{hashlib.sha256(source).hexdigest()[:16]}")
    module.__file__ = place
    sys.modules[module.__name__] = module  # dataclasses and pickles look there
    exec(compile(source, place, "exec"), module.__dict__)
    return module
