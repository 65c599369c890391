"""What the definitions are called in Dagster: the same for every model; where several share one Dagster, asset keys
begin with the recipe's `key_prefix`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # commands that only read have names to print, and no second for Dagster
    import dagster as dg

    from pipeline.recipe import Recipe

LOOP, ROLLOUT, LABELLING = "preference_tuning", "canary_rollout", "label_traces"
"""The jobs that take a recipe: the whole loop, its rollout, and its first two stages alone."""
DEPLOYMENT, IO_MANAGER = "deployment", "io_manager"
"""Resources."""


def asset_key(asset: str, prefix: str | None) -> "dg.AssetKey":
    import dagster as dg

    return dg.AssetKey([prefix, asset] if prefix else [asset])


def launch_command(recipe: "Recipe | None", job: str = LOOP, stage: str = "") -> list[str]:
    """The words that launch a job of the recipe's model; of the loop, from one stage on (`samples*`)."""
    prefix = recipe.key_prefix if recipe is not None else None
    location = ["-l", prefix] if prefix else []
    selection = ["-o", f"{prefix}__{stage}" if prefix else stage] if stage else []
    return ["dagster", "job", "launch", *location, "-j", job, *selection]
