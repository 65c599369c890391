"""A task of Inspect, as a user has one; run where Inspect is."""

# pyright: basic, reportMissingImports=false

from inspect_ai import Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import ChatMessageSystem, ChatMessageUser
from inspect_ai.scorer import match
from inspect_ai.solver import generate


@task
def sums(count: int = 80):
    samples = [
        Sample(
            id=f"sum-{number}",
            input=[
                ChatMessageSystem(content="Add, and end with the number."),
                ChatMessageUser(content=f"What is {number} and {number + 7}?"),
            ],
            target=str(2 * number + 7),
            metadata={"cluster": f"tens-{number // 2}", "slice": ("even", "odd")[number % 2]},
        )
        for number in range(count)
    ]
    return Task(dataset=MemoryDataset(samples), solver=generate(temperature=0.1), scorer=match(numeric=True))


@task
def unnamed():
    """Samples without ids, which Inspect numbers."""
    samples = [Sample(input=f"What is {number} and 1?", target=str(number + 1)) for number in range(3)]
    return Task(dataset=MemoryDataset(samples), solver=generate(), scorer=match(numeric=True))
