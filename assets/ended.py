"""The end of an iteration: its last record, its page, and what all iterations add up to, shown in Dagster.

What is shown is made from the records and can be made again (`pt report`), so it never fails a stage that went well.
"""

import time

import dagster as dg

from assets.kpi.fold import read_kpi
from assets.kpi.observation import KPI, kpi_observation
from assets.outcome import Ending, conclude
from assets.report.pages import write_history, write_iteration
from assets.resources import Deployment
from pipeline.core.iteration import Iteration


def end(
    context: dg.AssetExecutionContext, deployment: Deployment, iteration: Iteration, ending: Ending, detail: str
) -> None:
    """Record how the iteration ended, once, and show it."""
    conclude(deployment.store(), iteration, ending, detail)
    show_figures(context, deployment, iteration.id)


def show_figures(context: dg.OpExecutionContext | dg.AssetExecutionContext, deployment: Deployment, id: str) -> None:
    """Write the page of an iteration and that of all, and observe `kpi`."""
    try:
        store, recipe, now = deployment.store(), deployment.recipe(), time.time()
        write_iteration(store, recipe, id, now)
        page = write_history(store, recipe, now)
        key = deployment.key(KPI)
        context.log_event(kpi_observation(key, read_kpi(store, recipe), str(page)))
    except Exception as error:  # boundary: a picture of what has ended well
        context.log.warning(f"The key figures are not shown: {error!r}. pt report {id} makes the page.")
