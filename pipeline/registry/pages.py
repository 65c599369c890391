"""Addresses of MLflow's pages, for people: of a run, and of a version. Refuses to ask a server."""

from __future__ import annotations

from urllib.parse import quote

from pipeline.registry.runs import RunIdentity


def run_page(tracking_uri: str, run: RunIdentity) -> str:
    """ "" where the tracking server is no web server."""
    if not _is_web(tracking_uri):
        return ""
    return f"{tracking_uri.rstrip('/')}/#/experiments/{run.experiment_id}/runs/{run.run_id}"


def version_page(registry_uri: str, name: str, version: int) -> str:
    """ "" where the registry is no web server."""
    if not _is_web(registry_uri):
        return ""
    return f"{registry_uri.rstrip('/')}/#/models/{quote(name, safe='')}/versions/{version}"


def _is_web(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))
