"""The embedded suite without a data root."""

from evals.suites import Suite, lines
from pipeline.demo.suite import suite_text
from pipeline.recipe import Evaluation
from pipeline.recipe.suites import ItemsSuite


def embedded_suite(section: Evaluation) -> Suite:
    """As the evaluation reads it from its file."""
    (settings,) = section.suites
    assert isinstance(settings, ItemsSuite)
    items = lines.parse_embedded(suite_text(settings, section.seed).encode())
    return Suite(name=settings.name, items=items)
