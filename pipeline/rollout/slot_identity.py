"""Which model the server at an address really serves."""

import time
from collections.abc import Callable

from pipeline.core.storage import ModelRef
from pipeline.rollout.fold import models_to_serve
from pipeline.rollout.probe import fingerprint_over_http, identified
from pipeline.rollout.record import RolloutState
from pipeline.serving.endpoint import Endpoint, digest_head, served_name, served_names

REMEMBERED_S = 30.0
"""How long a slot is taken to serve what its fingerprint said."""


class SlotIdentity:
    """Tells a server's model by its fingerprint, where the proposal has those of both models, else by the name that it
    gives. Remembered for REMEMBERED_S."""

    def __init__(self, model_name: str, rollout: Callable[[], RolloutState], champion: Callable[[], ModelRef]) -> None:
        self._model_name, self._rollout, self._champion = model_name, rollout, champion
        self._remembered: dict[str, tuple[float, list[str], str]] = {}

    def __call__(self, url: str) -> str:
        """Its digest. Raises ValueError for a server of no model that is wanted, OSError for one that is away."""
        names = served_names(Endpoint(url))  # each time: one that is away is known to be
        at, names_then, digest = self._remembered.get(url, (0.0, names, ""))
        if time.monotonic() - at > REMEMBERED_S or names_then != names:
            digest = self._identified(url, names)
            self._remembered[url] = time.monotonic(), names, digest
        return digest

    def _identified(self, url: str, names: list[str]) -> str:
        name, state = self._model_name, self._rollout()
        models = {model.digest: () for model in models_to_serve(state, self._champion(), time.time())}
        if state.proposal is not None:
            prints = state.proposal.fingerprints
            models |= {state.proposal.champion.digest: prints.champion}
            models |= {state.proposal.version.model.digest: prints.candidate}
        given = [digest for digest in models for each in names if digest.startswith(digest_head(each, name) or "-")]
        if not given:
            raise ValueError(f"{url} serves {', '.join(names) or 'nothing'}: none of it is a model that is wanted.")
        answers = {digest: fingerprint for digest, fingerprint in models.items() if fingerprint}
        if given[0] not in answers:
            return given[0]
        return identified(fingerprint_over_http(Endpoint(url), served_name(name, given[0])), answers, given[0])
