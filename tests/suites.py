"""The embedded suite without a data root."""

from evals.suites import Suite, parse
from pipeline.demo.suite import suite_text
from pipeline.recipe import Evaluation


def embedded_suite(section: Evaluation) -> Suite:
    """As the evaluation reads it from its file."""
    return parse(section.suite, suite_text(section.seed, section.items))
