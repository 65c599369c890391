"""The embedded suite without a data root."""

from evals.suites import Suite, embedded
from pipeline.demo.suite import suite_text
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import ArithmeticSuite


def embedded_suite(section: Evaluation) -> Suite:
    """As the evaluation reads it from its file."""
    (settings,) = section.suites
    assert isinstance(settings, ArithmeticSuite)
    items = embedded.parse(suite_text(settings, section.seed).encode(), settings.items)
    return Suite(name=settings.name, items=items)
