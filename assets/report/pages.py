"""The pages as files: what is read, where each lies, how one links to another, and the template that each is made by.

A page lies beside the records that it is about (`layout.PAGE`, `layout.HISTORY_PAGE`), or where its reader asks for it.
Its links are relative to itself, so a data root that is moved keeps them; there is none to a file that is not there.
"""

import os
import shlex
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from assets.kpi.costs import price_list
from assets.kpi.fold import RolloutLog, grades_paid, iteration_kpi, read_kpi, rollout_figures
from assets.kpi.ledgers import IterationLedgers, read_ledgers
from assets.kpi.records import Kpi
from assets.naming import launch_command
from assets.report import content, figures
from assets.report.figures import PageLink
from assets.report.history import history_sections
from pipeline.core import layout
from pipeline.core.storage import Store, write_atomically
from pipeline.recipe import Recipe
from pipeline.rollout.record import RolloutEvent, read_events


class PageFolder(NamedTuple):
    """Where a page will lie: what its links are relative to."""

    store: Store
    folder: Path

    def link(self, name: str, text: str, *parts: str) -> PageLink:
        """To a file below the data root; without an address where it is not there."""
        path = self.store.path(*parts)
        return PageLink(name, text, quote(os.path.relpath(path, self.folder)) if path.exists() else "")


def page_path(store: Store, iteration: str) -> Path:
    """Of an iteration's page beside its records."""
    return store.path(layout.iteration(iteration, layout.PAGE))


def history_path(store: Store) -> Path:
    return store.path(layout.HISTORY_PAGE)


def write_iteration(store: Store, recipe: Recipe, iteration: str, now: float, out: Path | None = None) -> Path:
    """Write the page of an iteration, whatever state it is in; returns where. Raises OSError where it cannot be
    written, and ValueError where there is no such iteration or the rollout's log is damaged."""
    if not store.path(layout.iteration(iteration)).is_dir():
        raise ValueError(f"There is no iteration {iteration} under {store.root}. pt status lists the newest ones.")
    path = out or page_path(store, iteration)
    text = iteration_page(recipe, read_ledgers(store, iteration), PageFolder(store, path.absolute().parent), now)
    write_atomically(path, text)
    return path


def write_history(store: Store, recipe: Recipe, now: float, out: Path | None = None) -> Path:
    """Write the page of all iterations; returns where. Raises OSError where it cannot be written."""
    path = out or history_path(store)
    write_atomically(
        path, history_page(recipe, read_kpi(store, recipe), PageFolder(store, path.absolute().parent), now)
    )
    return path


def iteration_page(recipe: Recipe, of: IterationLedgers, place: PageFolder, now: float) -> str:
    """The whole file of one iteration."""
    name = recipe.base_model.name
    events = read_events(place.store, name)
    log = RolloutLog(events, grades_paid(place.store, events))
    kpi = iteration_kpi(of, dict(rollout_figures(log)).get(of.id), price_list(recipe))
    return _render(
        "iteration.jinja",
        now,
        title=f"{recipe.base_model.name}: iteration {of.id}",
        deployment=recipe.name,
        kpi=kpi,
        headline=figures.headline(kpi),
        figures=list(figures.figures_of(kpi)),
        begun=figures.when(kpi.begun_at),
        data=content.data_section(of, kpi) if of.traces else None,
        labels=content.label_section(of),
        decision=content.decision_section(of),
        training=content.training_section(of),
        evaluation=content.evaluation_section(of),
        rollout=content.rollout_section(_of_iteration(log.events, of.id)),
        costs=figures.cost_table(kpi) if kpi.costs else None,
        lineage=_lineage(of, place, log.events),
        history=place.link("history", "all iterations", layout.HISTORY_PAGE),
    )


def history_page(recipe: Recipe, kpi: Kpi, place: PageFolder, now: float) -> str:
    """The whole file of all iterations."""
    links = {
        each.iteration: place.link(each.iteration, each.iteration, layout.iteration(each.iteration, layout.PAGE)).href
        for each in kpi.iterations
    }
    return _render(
        "history.jinja",
        now,
        title=f"{kpi.model}: all iterations",
        deployment=recipe.name,
        kpi=kpi,
        links=links,
        launch=first_launch(recipe),
        **history_sections(kpi),
    )


def first_launch(recipe: Recipe) -> str:
    """The command that makes the first iteration."""
    return shlex.join(launch_command(recipe))


def _lineage(of: IterationLedgers, place: PageFolder, events: Sequence[RolloutEvent]) -> list[PageLink]:
    links: list[PageLink] = []
    maker = _maker(of, events)
    if maker:
        links.append(place.link("iteration that made the champion", maker, layout.iteration(maker, layout.PAGE)))
    for name, text, file in content.digests(of):
        links.append(place.link(name, text, layout.iteration(of.id, file)) if file else PageLink(name, text))
    return links


def _maker(of: IterationLedgers, events: Sequence[RolloutEvent]) -> str:
    """The iteration whose candidate this one's champion was; "" for the base model."""
    champion = of.traces.iteration.champion.digest if of.traces is not None else ""
    versions = [event.proposal.version for event in events if event.proposal is not None]
    return next((each.iteration for each in versions if each.model.digest == champion), "")


def _of_iteration(events: Sequence[RolloutEvent], iteration: str) -> list[RolloutEvent]:
    """The events of the last rollout of that iteration's candidate."""
    proposals = [event.proposal for event in events if event.proposal is not None]
    rollouts = [each.rollout for each in proposals if each.version.iteration == iteration]
    return [event for event in events if rollouts and event.rollout == rollouts[-1]]


def _render(template: str, now: float, **values: Any) -> str:
    return _templates().get_template(template).render(now=figures.when(now), **values)


@cache
def _templates() -> Environment:
    """Every value is escaped, but for the fragments that are marked as markup where they are made."""
    return Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
