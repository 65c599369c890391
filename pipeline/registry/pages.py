"""Addresses of MLflow's pages, for people: of a run, and of a version. Refuses to ask a server that has no pages."""

from __future__ import annotations

from urllib.parse import quote


def run_page(tracking_uri: str, run_id: str) -> str:
    """ "" where the tracking server is no web server. Raises what MLflow raises for a run that there is not."""
    if not _is_web(tracking_uri):
        return ""
    from mlflow import MlflowClient

    experiment = MlflowClient(tracking_uri).get_run(run_id).info.experiment_id
    return f"{tracking_uri.rstrip('/')}/#/experiments/{experiment}/runs/{run_id}"


def version_page(tracking_uri: str, name: str, version: int) -> str:
    """ "" where the tracking server is no web server."""
    if not _is_web(tracking_uri):
        return ""
    return f"{tracking_uri.rstrip('/')}/#/models/{quote(name, safe='')}/versions/{version}"


def _is_web(tracking_uri: str) -> bool:
    return tracking_uri.startswith(("http://", "https://"))
