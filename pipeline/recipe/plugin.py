"""Recipe sections that choose an installed plug-in: its name, its options, and the version that was agreed on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, JsonValue

from pipeline import plugins
from pipeline.section import Section

PluginName = Annotated[str, Field(min_length=1)]
Options = Annotated[dict[str, JsonValue], Field(default={})]


class PluginSource(Section):
    """Traces in a format of your own, read by an installed package (docs/plugins.md)."""

    kind: Literal["plugin"] = "plugin"
    """Selects a plug-in."""
    name: PluginName
    """Name of an entry point of the group `preference_tuning.sources`."""
    uri: str = ""
    """What the plug-in is given as its address; no secrets: it reads those from its own environment variables."""
    options: Options
    """Keyword arguments of the plug-in."""
    digest: str | None = None
    """`distribution==version` of the plug-in. Given, another one is refused; null: what is installed when the recipe is
    read. Another version is another recipe, and reads every part again."""

    def installed(self) -> plugins.InstalledPlugin:
        """The plug-in. Raises ValueError where there is none, or another than `digest` says."""
        field = "traces.source.name"
        return plugins.pinned(plugins.installed(plugins.SOURCES, self.name, field), self.digest, field)


class PluginEngine(Section):
    """Where the data's stages run, in place of `compute.data`: an installed package (docs/plugins.md)."""

    kind: Literal["plugin"] = "plugin"
    """Selects a plug-in."""
    name: PluginName
    """Name of an entry point of the group `preference_tuning.engines`."""
    options: Options
    """Keyword arguments of the plug-in."""
    digest: str | None = None
    """`distribution==version` of the plug-in. Given, another one is refused; null: any. It decides no result."""

    def installed(self) -> plugins.InstalledPlugin:
        """The plug-in. Raises ValueError where there is none, or another than `digest` says."""
        field = "compute.engine.name"
        return plugins.pinned(plugins.installed(plugins.ENGINES, self.name, field), self.digest, field)
