"""Microsoft Presidio: its pattern recognisers over texts that our mask has passed, and its recognisers of names.

Owns how it is set up: nothing is downloaded. Refuses to mask. Names need a model of spaCy's, which this repository does
not bring and people install.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from pipeline.traces.pii import Unmaskable, mask

MIN_SCORE = 0.4
"""Presidio's own confidence; its telephone numbers have just this, and below it are bare digits."""
MODELS = ("en_core_web_trf", "en_core_web_lg", "en_core_web_md", "en_core_web_sm")
"""Of spaCy, the best first."""
MODULES = (
    "spacy",
    "presidio_analyzer",
    "presidio_analyzer.predefined_recognizers",
    "presidio_analyzer.nlp_engine",
)


def cross_check(texts: Iterable[str]) -> dict[str, int]:
    """How many findings of each Presidio entity are left in texts after our mask. Needs `pip install .[pii]`."""
    analyzer = patterns()
    left: Counter[str] = Counter()
    for text in texts:
        try:
            masked = mask(text)
        except Unmaskable:
            continue
        left.update(finding.entity_type for finding in analyzer.analyze(masked, "en") if finding.score >= MIN_SCORE)
    return dict(sorted(left.items()))


def named_entities() -> Any:
    """Presidio with all of its English recognisers, those of names and places among them, on the largest English model
    that is installed. Raises ValueError where Presidio or a model is missing."""
    spacy, presidio, _, engines = (_optional(name) for name in MODULES)
    model = next((name for name in MODELS if spacy.util.is_package(name)), None)
    if model is None:
        raise ValueError(
            f"None of spaCy's models {', '.join(MODELS)} is installed, and without one Presidio finds no names. Run "
            f"python -m spacy download {MODELS[0]}, or choose presidio_patterns, which finds none."
        )
    engine = engines.SpacyNlpEngine(models=[{"lang_code": "en", "model_name": model}])
    engine.load()
    return presidio.AnalyzerEngine(nlp_engine=engine, supported_languages=["en"])


def patterns() -> Any:
    """Presidio with its checksummed and formatted kinds, on a blank tokeniser: nothing is downloaded."""
    spacy, presidio, kinds, engines = (_optional(name) for name in MODULES)

    class Blank(engines.SpacyNlpEngine):
        def load(self) -> None:
            self.nlp = {"en": spacy.blank("en")}

    names = ("CreditCard", "Email", "Iban", "Ip", "Phone", "UsSsn", "KrRrn")
    registry = presidio.RecognizerRegistry(recognizers=[getattr(kinds, f"{name}Recognizer")() for name in names])
    engine = Blank()
    engine.load()
    return presidio.AnalyzerEngine(registry=registry, nlp_engine=engine, supported_languages=["en"])


def _optional(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        raise ValueError(f"{name} is not installed. Run pip install 'preference-tuning[pii]'.") from error
