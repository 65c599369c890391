"""Plug-ins: installed packages that extend the pipeline by an entry point, found by group and name, loaded on use.

Owns the lookup, what a plug-in is known by (distribution and version), and the error of each way in which one can be
missing or broken: it names the distribution and says what to do. Refuses to know what a plug-in has to do: the module
that uses a group checks that. A plug-in is imported where it is used and runs with the rights of the pipeline.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, NamedTuple

SOURCES = "preference_tuning.sources"
REWARDS = "preference_tuning.rewards"
SUITES = "preference_tuning.suites"
ENGINES = "preference_tuning.engines"


class InstalledPlugin(NamedTuple):
    """One entry point of an installed distribution."""

    point: EntryPoint
    distribution: str
    version: str

    @property
    def digest(self) -> str:
        """What it is known by: `distribution==version`. Two builds of one version are the same plug-in."""
        return f"{self.distribution}=={self.version}"

    def __str__(self) -> str:
        return f"The plug-in {self.point.name} of {self.distribution} {self.version}"


def installed(group: str, name: str, field: str) -> InstalledPlugin:
    """The plug-in of that name. `field` of the recipe names it. Raises ValueError unless there is exactly one."""
    points = entry_points(group=group)
    matching = [point for point in points if point.name == name]
    if not matching:
        names = ", ".join(sorted({point.name for point in points})) or "none at all"
        raise ValueError(
            f"{field}: no installed package has an entry point {name!r} in the group {group} (there: {names}). "
            "Install the one that has it with pip, in the environment that the pipeline runs in."
        )
    plugins = {_plugin(point).digest: _plugin(point) for point in matching}
    if len(plugins) > 1 or len({point.value for point in matching}) > 1:
        owners = ", ".join(sorted(plugins))
        raise ValueError(
            f"{field}: {len(matching)} entry points are named {name!r} in the group {group} ({owners}). Uninstall all "
            "but one."
        )
    return next(iter(plugins.values()))


def pinned(plugin: InstalledPlugin, digest: str | None, field: str) -> InstalledPlugin:
    """The plug-in, if it is the one that a digest says (None: any). Raises ValueError for another."""
    if digest is not None and digest != plugin.digest:
        raise ValueError(
            f"{field}: {digest} was agreed on, and {plugin.digest} is installed. Install {digest}, or change the "
            "digest and begin a new iteration."
        )
    return plugin


def build(plugin: InstalledPlugin, *arguments: Any, options: Mapping[str, Any]) -> Any:
    """What the entry point's callable returns for these arguments, with the options as keywords.

    Raises ValueError when it cannot be imported, takes no such arguments, or raises anything but a ValueError, which
    passes as it is: it is for the person who wrote the recipe.
    """
    try:
        factory = plugin.point.load()
    except (Exception, SystemExit) as error:  # the boundary to code of others
        raise ValueError(
            f"{plugin} cannot be imported ({_named(error)}). Install what it needs, or another version of "
            f"{plugin.distribution}."
        ) from error
    if not callable(factory):
        raise ValueError(
            f"{plugin}: {plugin.point.value} is {type(factory).__name__}, which cannot be called. Let its entry point "
            "name a class or a function (docs/plugins.md)."
        )
    try:
        inspect.signature(factory).bind(*arguments, **options)
    except TypeError as error:
        raise ValueError(f"{plugin} does not take these options: {error}. Change options in the recipe.") from error
    except ValueError:  # written in C: it says nothing of its arguments
        pass
    try:
        return factory(*arguments, **options)
    except ValueError:
        raise
    except (Exception, SystemExit) as error:  # as above
        raise fault(plugin, error, "was set up") from error


def fault(plugin: InstalledPlugin, error: BaseException, when: str) -> ValueError:
    """What is said of an error inside a plug-in: its type and place. Its text may hold words of a trace."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" in {Path(frames[-1].filename).name}, line {frames[-1].lineno}" if frames else ""
    return ValueError(
        f"{plugin} failed when it {when} ({type(error).__name__}{place}). This is a fault of {plugin.distribution}: "
        "install a version without it, or tell its authors."
    )


def unlike(plugin: InstalledPlugin, what: str) -> ValueError:
    """What is said of a plug-in that does not keep its interface."""
    return ValueError(
        f"{plugin} does not keep the interface of {plugin.point.group}: {what}. Install a version of "
        f"{plugin.distribution} that does (docs/plugins.md)."
    )


def _plugin(point: EntryPoint) -> InstalledPlugin:
    distribution = point.dist
    assert distribution is not None, "entry points of installed packages have one"
    return InstalledPlugin(point, distribution.name, distribution.version)


def _named(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[-1]}" if lines else type(error).__name__
