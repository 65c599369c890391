"""The loop as one job: every asset from traces to canary, each step in a process of its own."""

import dagster as dg

from assets import evaluation, registry, rewards, selection, traces, training

ASSETS = dg.load_assets_from_modules([traces, rewards, selection, training, evaluation, registry])

# Steps are forked from a server that has loaded the definitions already: about a second less for each step.
# `jobs.steps` makes each end with that server, which ends with the run's worker.
executor = dg.multiprocess_executor.configured(
    {"max_concurrent": 2, "start_method": {"forkserver": {"preload_modules": ["jobs.steps", "jobs.definitions"]}}}
)

preference_tuning = dg.define_asset_job(
    "preference_tuning",
    selection=dg.AssetSelection.assets(*ASSETS),
    executor_def=executor,
    description="One iteration: production traces to a canary. With nothing new it says so and changes nothing.",
)
