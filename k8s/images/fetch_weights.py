"""`python -m k8s.images.fetch_weights URI DIGEST FOLDER` copies a model to a server's disk before the server starts. A
copy that was cut off goes on, and is what the gate passed, to the bit."""

import sys
from pathlib import Path

from pipeline.serving.model_places import copy_model

if __name__ == "__main__":
    address, wanted, target = sys.argv[1:]
    try:
        copy_model(address, wanted, Path(target))
    except (ValueError, OSError) as error:
        sys.exit(f"fetch_weights: {error}")
