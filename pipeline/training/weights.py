"""A folder of weights, published without what says where it lies."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from pipeline.core.locations import record_of_iteration
from pipeline.core.storage import ModelRef, Store, digest_dir, publish_dir
from pipeline.serving.model_places import origin

NEEDLESS = ("README.md", "training_args.bin")
"""An empty model card with the base's path, ours being in the registry; the trainer's arguments, which are not read."""
CONFIG = "adapter_config.json"
BASE = "base_model_name_or_path"


def without_places(folder: Path) -> None:
    """Make what was saved in a folder below an iteration's, not yet published, independent of the data root. An adapter
    names a base model under the data root by the way to it from there."""
    for name in NEEDLESS:
        (folder / name).unlink(missing_ok=True)
    path = folder / CONFIG
    if not path.is_file():
        return
    config = json.loads(path.read_text())
    base, root = origin(str(config.get(BASE))), record_of_iteration(path).root
    assert root is not None, "a record of an iteration always has a root"
    relative = Store(root).within(base)
    if relative != config.get(BASE):
        path.write_text(json.dumps({**config, BASE: relative}, indent=2, sort_keys=True))


def publish_weights(final: Path, write: Callable[[Path], None]) -> ModelRef:
    """What `write` leaves in a new folder, published as `final` in the place of an attempt's that was killed."""
    staging = final.with_name(f".{final.name}")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir(parents=True)
    write(staging)
    without_places(staging)
    shutil.rmtree(final, ignore_errors=True)
    publish_dir(staging, final)
    return ModelRef(uri=str(final), digest=digest_dir(final))
