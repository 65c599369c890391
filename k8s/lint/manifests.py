"""Manifests as the rules see them: objects by kind, and the pods that each workload makes. Judges nothing."""

from __future__ import annotations

from collections.abc import Iterable

from k8s.lint.pods import Container, Pods, Workload
from k8s.lint.tree import Node, rows, text
from k8s.lint.workloads import workload


class Manifests:
    """A set of objects that is looked at together: references are followed within it."""

    def __init__(self, objects: Iterable[Node]) -> None:
        self.objects = [o for top in objects for o in (rows(top, "items") if _is_list(top) else [top])]
        self._by_kind: dict[str, list[Node]] = {}
        for each in self.objects:
            self._by_kind.setdefault(text(each, "kind"), []).append(each)
        self.workloads = [w for o in self.objects if (w := workload(o)) is not None]

    def of(self, kind: str, group: str = "") -> list[Node]:
        """Objects of a kind, and where the kind's name is used twice, of a group."""
        return [o for o in self._by_kind.get(kind, []) if text(o, "apiVersion").startswith(group)]

    @property
    def trainings(self) -> list[Workload]:
        return [w for w in self.workloads if w.trains]

    @property
    def gangs(self) -> list[Workload]:
        return [w for w in self.workloads if w.gang]

    @property
    def pods(self) -> list[Pods]:
        return [p for w in self.workloads for p in w.all_pods]

    @property
    def commands(self) -> list[Container]:
        """All that is run."""
        return [c for w in self.workloads for c in w.commands]

    @property
    def trainer_commands(self) -> list[Container]:
        """All that trainings run."""
        return [c for w in self.trainings for c in w.commands]

    @property
    def trainer_pods(self) -> list[Pods]:
        return [p for w in self.trainings for p in w.pods]


def _is_list(node: Node) -> bool:
    return text(node, "kind").endswith("List") and isinstance(node.get("items"), list)
