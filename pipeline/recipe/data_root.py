"""Which folders are no data root, because a person keeps other things in them."""

import os
from pathlib import Path

PROJECT = (".git", "pyproject.toml", "dagster.yaml")


def data_root_problem(data_root: str) -> str:
    """Why nothing may be written, swept or erased there; "" where it may. The folder need not be there yet."""
    if "://" in data_root:
        return ""  # the store says so
    given = Path(data_root).expanduser().absolute()
    place = given.resolve()
    project = next((name for name in PROJECT if (place / name).exists()), "")
    what = ""
    if place.exists() and not place.is_dir():
        what = "a device" if place.is_block_device() or place.is_char_device() else "a file"
    elif place.is_relative_to("/proc") or place.is_relative_to("/sys") or place == Path("/dev"):
        what = "the system's"
    elif project:
        what = f"a project (it holds {project})"
    elif place in _homes():
        what = "a home"
    elif os.path.ismount(place):
        what = "a whole disk (a mount point)"
    return f"{given} is {what}. Name a folder of its own below it, such as {given / 'data'}." if what else ""


def _homes() -> set[Path]:
    own = os.path.expanduser("~")  # noqa: PTH111 (without an account Path raises)
    return {Path(own).resolve(), Path("/home"), *Path("/home").glob("*")}
