"""An iteration: one pass of the loop. Its id is a digest of the champion, the governed data and the recipe, so a retry
and a double launch have the same id."""

from pipeline.core import layout
from pipeline.core.storage import DatasetRef, ModelRef, Record, digest_json


class Iteration(Record):
    """The inputs of one pass. `number` counts the champions before it and is for people."""

    id: str
    number: int
    model_name: str
    champion: ModelRef
    dataset: DatasetRef
    recipe_digest: str

    def path(self, *parts: str) -> str:
        return layout.iteration(self.id, *parts)


def identify(number: int, model_name: str, champion: ModelRef, dataset: DatasetRef, recipe_digest: str) -> Iteration:
    """The iteration over these inputs. `dataset.digest` must depend on content alone, never on when it was read."""
    identity = digest_json([champion.digest, dataset.digest, recipe_digest])
    return Iteration(
        id=identity[:12],
        number=number,
        model_name=model_name,
        champion=champion,
        dataset=dataset,
        recipe_digest=recipe_digest,
    )
