"""A deployment checked without a run: `pt validate [--recipe PATH] [--override K=V ...] [--quick]`.

The recipe, the environment, model, disk and source; then, without --quick, a sample of the source through the reader
and the gates, the model's chat template and the gate's suite. Nothing is written. Exit codes: 0 nothing speaks against
a launch, 1 something does (it says what), 2 it could not be checked (it says why).
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from pathlib import Path
from typing import Any, NamedTuple

from assets.cluster import gate_refusals
from assets.preflight import launch_faults
from assets.resources import Deployment, deployment
from evals.suites import Suite, frozen, lines, suite
from jobs.screen import GREEN, RED, paint
from pipeline.core import layout
from pipeline.core.chat_template import TURNS, kinds_of, refusal, rendered, support_of
from pipeline.core.storage import Store
from pipeline.demo.suite import suite_text
from pipeline.recipe import Recipe
from pipeline.recipe.methods import METHODS
from pipeline.recipe.suites import ItemsSuite, SuiteSection, TracesSuite
from pipeline.recipe.traces import DemoSource
from pipeline.rollout.policy import policy_of
from pipeline.rollout.rules import stage_power
from pipeline.traces.preflight import SourceSample, disk_bytes, gigabytes, sample_source
from pipeline.traces.sources.protocol import Address, limits_of
from pipeline.training.launch import missing_packages, possible_methods

ROWS = 1000
"""Of the source that are looked at, the newest."""


class CheckedLine(NamedTuple):
    """One thing that was looked at."""

    fine: bool
    text: str


def fine(text: str) -> CheckedLine:
    return CheckedLine(True, text)


def problem(text: str) -> CheckedLine:
    return CheckedLine(False, text)


class ModelTemplate(NamedTuple):
    """The model's chat template."""

    tokens: Callable[[list[dict[str, str]]], int]
    """Of a prompt. Raises what the template raises, ValueError where it leaves something out."""
    left_out: frozenset[str]
    """What of a conversation it does not render (pipeline/core/chat_template.py)."""


def main(arguments: Sequence[str]) -> int:
    asked = parser().parse_args(arguments)
    lines: list[CheckedLine] = []
    try:
        for line in validate(asked):
            lines.append(line)
            if not asked.json:
                mark = paint(f"{'ok' if line.fine else 'PROBLEM':<7}", GREEN if line.fine else RED, sys.stdout.isatty())
                print(f"{mark}  {line.text}", flush=True)
    except AssertionError:  # a bug of ours keeps its traceback
        raise
    except Exception as error:  # boundary: a person at a terminal; drivers and tokenizers have errors of their own
        print(f"validate: {error} ({type(error).__name__})", file=sys.stderr)
        return 2
    is_fine = all(line.fine for line in lines)
    if asked.json:
        print(json.dumps({"fine": is_fine, "lines": [line._asdict() for line in lines]}, indent=2))
    return 0 if is_fine else 1


def parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="pt validate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument(
        "--recipe", default="", help="its path; default: PREFERENCE_TUNING_RECIPE, else the embedded one"
    )
    options.add_argument("--override", nargs="+", action="extend", default=[], metavar="K=V", help="training.seed=3")
    options.add_argument("--quick", action="store_true", help="a second or two: no row and no tokenizer is read")
    options.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    return options


def validate(asked: argparse.Namespace) -> Iterator[CheckedLine]:
    """One line for each thing that was looked at, as it is known."""
    try:
        named = deployment()
    except ValueError as error:
        yield problem(str(error))
        return
    settings = Deployment(recipe_path=asked.recipe or named.recipe_path, overrides=[*named.overrides, *asked.override])
    faults = launch_faults(settings)
    yield from (problem(fault.strip()) for fault in faults)
    try:
        recipe = settings.recipe()
    except ValueError:
        return
    yield fine(f"{settings.recipe_path} resolves: {recipe.name}, digest {recipe.digest()[:12]}")
    yield from _rollout(recipe)
    yield from (problem(fault) for fault in missing_packages(recipe, possible_methods(recipe)))
    template: ModelTemplate | None = None
    if not any(fault.startswith("base_model.uri") for fault in faults):
        yield from _disk(recipe)
        if asked.quick:
            return
        line, template = _template(recipe)
        yield line
    if asked.quick:
        return
    if not any(fault.startswith("traces.source") for fault in faults):
        yield from _source(settings, recipe, template)
    yield from _suites(recipe, settings.store(), template)


def _rollout(recipe: Recipe) -> Iterator[CheckedLine]:
    """How long a rollout takes at least, and with what power."""
    if recipe.rollout.traffic.kind == "none":
        return
    try:
        policy = policy_of(recipe.rollout)
        stages = [(policy.weight_at(stage), *stage_power(policy, stage)) for stage in range(len(policy.weights))]
    except ValueError as error:
        yield problem(str(error))
        return
    wanted = "; ".join(f"{weight}% {answers:,} ({power:.0%})" for weight, answers, power in stages)
    days = sum(policy.dwell_s) / 86_400
    yield fine(
        f"rollout: {days:,.1f} days at least; graded canary answers at each weight, and how probably an equal canary "
        f"passes: {wanted}"
    )


def _disk(recipe: Recipe) -> Iterator[CheckedLine]:
    needed, free = disk_bytes(recipe)
    place = Path(recipe.data_root).absolute()
    yield fine(f"disk: an iteration writes about {gigabytes(needed)}; {place} has {gigabytes(free)} free")


def _template(recipe: Recipe) -> tuple[CheckedLine, ModelTemplate | None]:
    from transformers import AutoTokenizer  # takes a few seconds

    def tokens(messages: list[dict[str, str]]) -> int:
        return len(tokenizer(rendered(tokenizer, messages), add_special_tokens=False)["input_ids"])

    try:
        tokenizer: Any = AutoTokenizer.from_pretrained(str(Path(recipe.base_model.uri).absolute()))
        tokens([{"role": "user", "content": "Hello"}])
    except Exception as error:  # the boundary of the tokenizer: templates raise what they like
        why = " ".join(str(error).split())[:200]
        text = f"base_model.uri: the chat template does not render ({why}). Save the tokenizer with one."
        return problem(text), None
    left_out = support_of(tokenizer).left_out
    lacks = f", and leaves out {', '.join(sorted(left_out))}" if left_out else ""
    return fine(f"chat template: renders{lacks}"), ModelTemplate(tokens, left_out)


def _source(settings: Deployment, recipe: Recipe, template: ModelTemplate | None) -> Iterator[CheckedLine]:
    source = recipe.traces.source
    if isinstance(source, DemoSource) and not settings.store().path(layout.PRODUCTION).exists():
        yield fine("source: the embedded production, which a run serves first; there is nothing to look at yet")
        return
    sample = sample_source(
        Address(source, settings.source_uri(), limits_of(recipe.traces)), recipe.traces, datetime.now(UTC), ROWS
    )
    share = f"{sample.admitted:,} of the newest {sample.rows:,} rows would be admitted"
    yield CheckedLine(sample.admitted > 0, f"source: {share} ({sample.parts} parts of {sample.source})")
    reasons = ", ".join(f"{reason} {count:,}" for reason, count in sample.rejected.most_common())
    yield fine(f"rejected: {reasons or 'none'}")
    yield _consent(recipe, sample)
    keys = ", ".join(f"{key} {count:,}" for key, count in sample.metadata_keys.most_common(20))
    yield fine(f"metadata keys: {keys or 'none'}")
    yield fine(f"models: {', '.join(f'{name} {count:,}' for name, count in sample.models.most_common(9))}")
    yield from score_lines(sample)
    forced = recipe.selection.method
    checkable = sample.references > 0 or forced == "auto" or "verifiable" not in METHODS[forced].needs
    hint = (
        "" if checkable else f". selection.method is {forced}, which needs them: put expected_answer into the metadata"
    )
    yield CheckedLine(
        checkable, f"labels: {sample.references:,} with expected_answer, {sample.feedback:,} with feedback{hint}"
    )
    if template is None:
        return
    wanted = template.left_out if recipe.selection.tools == "train" else template.left_out & {TURNS}
    if lacking := {kind: sample.takes[kind] for kind in sorted(wanted & sample.takes.keys())}:
        yield problem(f"base_model.uri: {refusal(recipe.base_model.uri, lacking, sample.admitted)}")
    drawn = [m.completion_tokens or 0 for name, m in recipe.training.by_name().items() if forced in ("auto", name)]
    if sample.longest_prompt and any(drawn) and not kinds_of(sample.longest_prompt) & template.left_out:
        yield _fits(recipe, "longest prompt", template.tokens(sample.longest_prompt), max(drawn))


def score_lines(sample: SourceSample) -> Iterator[CheckedLine]:
    """Every name, and what declares it."""
    for each in sample.scores:
        hint = "" if each.declared else ". Declare them in traces.scores, with use: ignore if people did not give them"
        yield fine(f"scores: {each.line()}{hint}")
    if sample.scored_wrongly:
        yield problem(f"scores: {sample.scored_wrongly}")


def _consent(recipe: Recipe, sample: SourceSample) -> CheckedLine:
    key, seen = recipe.traces.consent_key, list(sample.metadata_keys)
    if sample.consented or not sample.rows:
        return fine(f"consent: {sample.consented:,} of {sample.rows:,} rows say yes under {key}")
    if key in seen:
        return problem(f"consent: no row says yes under {key}. Rows without an explicit yes are not trained on.")
    near = get_close_matches(key, seen, 1, 0.5) or [name for name in seen if "consent" in name.lower()][:1]
    meant = f"Did you mean {near[0]}? Set traces.consent_key" if near else "Set traces.consent_key to the key that does"
    return problem(f"consent: no row has {key}. {meant}, or write it into the metadata.")


def _suites(recipe: Recipe, store: Store, template: ModelTemplate | None) -> Iterator[CheckedLine]:
    section = recipe.evaluation
    asked: list[Suite] = []
    unread = False
    for each in section.asked:
        try:
            if isinstance(each, TracesSuite) and frozen.latest(store, each.name) is None:
                yield fine(f"suite {each.name} ({each.role}): preference_dataset will freeze it")
            else:
                asked.append(_suite(each, store, section.seed))
        except ValueError as error:
            unread = True
            yield problem(f"suite {each.name}: {error}")
    if unread:
        return
    refusals = gate_refusals(recipe, recipe.base_model.uri, asked)
    yield from (problem(f"evaluation: {refusal}") for refusal in refusals)
    for each in asked:
        settings = section.suite(each.name)
        if not refusals:
            yield fine(f"suite {each.name} ({settings.role}): {len(each.items):,} items")
        if template is not None:
            try:
                asked_in_full = [m for m in map(each.messages, each.items) if not kinds_of(m) & template.left_out]
                longest = max(map(template.tokens, asked_in_full), default=0)
            except Exception as error:  # the boundary of the tokenizer, as in _template
                why = " ".join(str(error).split())[:200]
                yield problem(
                    f"suite {each.name}: the model's chat template does not take its messages ({why}). Leave out "
                    "system, or save the tokenizer with a template that takes the roles of its items."
                )
                continue
            limit = settings.max_completion_tokens or section.max_completion_tokens
            yield _fits(recipe, f"longest question of {each.name}", longest, limit)


def _suite(section: SuiteSection, store: Store, seed: int) -> Suite:
    """As the run will ask it; the demo's is written by its first stage."""
    if isinstance(section, ItemsSuite) and section.embedded:
        items = lines.parse_embedded(suite_text(section, seed).encode())
        return Suite(name=section.name, items=items, system=section.system, instruction=section.instruction)
    return suite(store, section, seed)


def _fits(recipe: Recipe, what: str, tokens: int, completion: int) -> CheckedLine:
    context = _context(recipe)
    text = f"{what}: {tokens:,} tokens, and {completion:,} for its answer"
    if context and tokens + completion > context:
        return problem(f"{text} are more than the model's context of {context:,}. Lower max_completion_tokens.")
    return fine(text)


def _context(recipe: Recipe) -> int:
    config: dict[str, Any] = json.loads(Path(recipe.base_model.uri, "config.json").read_text())
    name = "max_position_embeddings"
    return int(config.get(name) or config.get("text_config", {}).get(name) or 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
