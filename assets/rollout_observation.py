"""A look at the rollout as Dagster shows it: an observation of the asset `canary`, with the picture of the terminal."""

from collections.abc import Sequence

import dagster as dg

from pipeline.core.markdown import literal
from pipeline.rollout.picture import ArmRow, StageMark, arm_rows, sentences, stage_marks
from pipeline.rollout.status import RolloutStatus

SIGNS = {"done": "✔", "now": "▶", "held": "‖", "undone": "✘", "next": "·"}


def rollout_observation(canary: dg.AssetKey, report: RolloutStatus, now: float) -> dg.AssetObservation:
    """One look, to be logged by the run that took it. `canary`: the key of the model's asset."""
    tags = {"rollout": report.rollout, "phase": str(report.phase)} if report.rollout else {}
    return dg.AssetObservation(canary, metadata=rollout_metadata(report, now), tags=tags)


def rollout_metadata(report: RolloutStatus, now: float) -> dict[str, dg.MetadataValue]:
    """The figures that Dagster draws over time, and the picture in Markdown."""
    figures: dict[str, float | None] = {"canary weight in percent": report.weight}
    for name, arm in (("champion", report.champion), ("canary", report.canary)):
        if arm is not None:
            figures |= {f"{name} requests": arm.requests, f"{name} users": arm.users, f"{name} graded": arm.graded}
            shares = {"right": arm.quality.value, "errors": arm.errors, "slow": arm.slow}
            figures |= {f"{name} {what} in percent": _percent(share) for what, share in shares.items()}
    figures |= {"dwell in seconds": round(report.dwell_s, 1), "looks": report.looks}
    shown: dict[str, dg.MetadataValue] = {
        "phase": dg.MetadataValue.text(str(report.phase)),
        "why": dg.MetadataValue.text(report.reason),
        "rollout": dg.MetadataValue.md(markdown(report, now)),
    }
    return shown | {name: dg.MetadataValue.float(float(value)) for name, value in figures.items() if value is not None}


def _percent(share: float | None) -> float | None:
    """To a hundredth: Dagster shows a figure as it is."""
    return None if share is None else round(100 * share, 2)


def markdown(report: RolloutStatus, now: float) -> str:
    """The picture: stages, both arms, and what it waits for."""
    parts = [_stages(stage_marks(report)), _arms(arm_rows(report))]
    parts.append("\n".join(f"- **{name}**: {literal(text)}" for name, text in sentences(report, now)))
    return "\n\n".join(part for part in parts if part)


def _stages(marks: Sequence[StageMark]) -> str:
    return " → ".join(f"{SIGNS[mark.progress]} {mark.weight}% ({mark.done:.0%} of its dwell)" for mark in marks)


def _arms(rows: Sequence[ArmRow]) -> str:
    if not rows:
        return ""
    lines = [f"| {row.name} | {row.champion} | {row.canary} | {literal(row.note)} |" for row in rows]
    return "\n".join(["| | champion | canary | |", "| --- | --- | --- | --- |", *lines])
