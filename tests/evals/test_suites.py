from evals.suites import SUITES, held_out_texts, suite
from pipeline.demo.task import problems
from pipeline.recipe import Evaluation
from pipeline.selection.contamination import Index

SECTION = Evaluation(items=50, seed=3)


def test_the_same_section_gives_the_same_items() -> None:
    first, again = suite(SECTION), suite(SECTION)
    assert first == again
    assert first.name == SECTION.suite
    assert len({item.id for item in first.items}) == 50
    assert suite(SECTION.model_copy(update={"seed": 4})).digest() != first.digest()


def test_every_suite_offers_all_its_items_for_decontamination() -> None:
    texts = held_out_texts(SECTION)
    assert texts.keys() == SUITES.keys() >= {SECTION.suite}
    assert texts["arithmetic"] == tuple(item.messages[0]["content"] for item in suite(SECTION).items)
    assert texts["arithmetic"][0] == problems(3, "heldout", 1)[0].prompt


def test_every_text_identifies_its_item() -> None:
    assert Index(held_out_texts(SECTION)).check([])[1].unidentifying == 0
