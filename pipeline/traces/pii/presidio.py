"""A second opinion on personal data: Microsoft Presidio's pattern recognisers over texts that our mask has passed.

Owns the comparison, for the benchmark and for audits. Refuses to mask: it reads some hundred texts a second, and its
recognisers of names need a language model that this repository does not bring.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from pipeline.traces.pii import Unmaskable, mask

MIN_SCORE = 0.4
"""Presidio's own confidence; its telephone numbers have just this, and below it are bare digits."""
MODULES = (
    "spacy",
    "presidio_analyzer",
    "presidio_analyzer.predefined_recognizers",
    "presidio_analyzer.nlp_engine",
)


def cross_check(texts: Iterable[str]) -> dict[str, int]:
    """How many findings of each Presidio entity are left in texts after our mask. Needs `pip install .[pii]`."""
    analyzer = _analyzer()
    left: Counter[str] = Counter()
    for text in texts:
        try:
            masked = mask(text)
        except Unmaskable:
            continue
        left.update(finding.entity_type for finding in analyzer.analyze(masked, "en") if finding.score >= MIN_SCORE)
    return dict(sorted(left.items()))


def _analyzer() -> Any:
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
        raise ValueError(f"{name} is not installed. Run pip install '.[pii]' for the cross-check.") from error
