"""The software bill of materials: `python -m jobs.bill_of_materials > sbom.json`, CycloneDX 1.6 in JSON.

Owns what is installed here beside the project: name, version, licence as the package states it, and which of them needs
which. Asks no index. The hashes of what was installed are in hashes-*.txt. The same environment gives the same bytes.
"""

import json
import re
import sys
from collections.abc import Iterable
from importlib.metadata import Distribution, distributions
from typing import Any
from urllib.parse import quote

PROJECT = "preference-tuning"
_NAME = re.compile(r"^\s*([A-Za-z0-9][A-Za-z0-9._-]*)")
_EXTRA = re.compile(r";.*\bextra\s*==")


def bill(installed: Iterable[Distribution]) -> dict[str, Any]:
    """The document, of these packages and the project among them. Raises ValueError where the project is not there."""
    packages = {_key(each.metadata["Name"]): each for each in installed}
    project = packages.pop(PROJECT, None)
    if project is None:
        raise ValueError(f"{PROJECT} is not installed in this environment. Install it: pip install -e .")
    everything = {PROJECT: project, **dict(sorted(packages.items()))}
    components = {name: _component(each, "library") for name, each in sorted(packages.items())}
    references = {PROJECT: f"pkg:pypi/{PROJECT}@{project.version}"}
    references |= {name: component["bom-ref"] for name, component in components.items()}
    needs = [
        {"ref": references[name], "dependsOn": sorted(references[need] for need in _needs(each) if need in references)}
        for name, each in everything.items()
    ]
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"component": _component(project, "application")},
        "components": list(components.values()),
        "dependencies": needs,
    }


def _component(package: Distribution, kind: str) -> dict[str, Any]:
    name, version = _key(package.metadata["Name"]), package.version
    reference = f"pkg:pypi/{name}@{quote(version, safe='')}" if "+" in version else f"pkg:pypi/{name}@{version}"
    component: dict[str, Any] = {"type": kind, "bom-ref": reference, "name": name, "version": version}
    component["purl"] = reference
    if expression := _field(package, "License-Expression"):
        component["licenses"] = [{"expression": expression}]
    elif stated := _stated(package):
        component["licenses"] = [{"license": {"name": stated}}]
    return component


def _stated(package: Distribution) -> str:
    """The licence's name by the package's classifiers, else by its own field where that is a name and no text."""
    classifiers = package.metadata.get_all("Classifier") or []
    named = [each.rpartition(" :: ")[2] for each in classifiers if each.startswith("License ::")]
    field = _field(package, "License").strip()
    return "; ".join(named) or (field if len(field) <= 80 and "\n" not in field else "")


def _field(package: Distribution, name: str) -> str:
    return next(iter(package.metadata.get_all(name) or []), "")


def _needs(package: Distribution) -> set[str]:
    """Packages that it cannot do without; those of its extras are left out."""
    wanted = (line for line in package.requires or [] if not _EXTRA.search(line))
    return {_key(match[1]) for line in wanted if (match := _NAME.match(line))}


def _key(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    try:
        document = bill(distributions())
    except ValueError as error:
        print(error, file=sys.stderr)
        return 1
    print(json.dumps(document, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
