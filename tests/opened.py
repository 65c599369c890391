"""A rollout that is opened without the stages before it."""

import shutil
from pathlib import Path

from assets.resources import Deployment
from pipeline.core.iteration import identify
from pipeline.core.storage import DatasetRef, model_ref
from pipeline.demo import MODEL_DIR
from pipeline.rollout.policy import policy_of
from pipeline.rollout.propose import RolloutCandidate, propose
from pipeline.rollout.record import JudgedCandidate, ModelVersion


def open_rollout(settings: Deployment, files: Path, now: float, proposed_by: str = "") -> str:
    """Propose version 7, of an iteration that left nothing else, against the champion; returns the rollout's id."""
    recipe, files = settings.recipe(), files / "candidate"
    shutil.copytree(MODEL_DIR, files)
    (files / "note.txt").write_text("a candidate: another digest than the base model's")
    candidate, data = model_ref(files), DatasetRef(uri="d", rows=1, digest="d")
    iteration = identify(0, recipe.base_model.name, settings.champion().model, data, "recipe")
    version = ModelVersion(
        name=iteration.model_name, version=7, run_id="run", model=candidate, adapter=candidate, iteration=iteration.id
    )
    judged = JudgedCandidate("PASS", candidate.digest, "bundle")
    opened = propose(
        settings.store(), iteration, RolloutCandidate(version, judged, proposed_by), policy_of(recipe.rollout), now
    )
    assert not opened.refused
    return opened.state.rollout
