"""The kept weights of both embedded worlds are the declared ones."""

from pipeline.core.storage import digest_file
from pipeline.demo import MODEL_DIR, MODEL_SHA256, is_demo_model
from pipeline.demo.desk import MODEL_DIR as DESK_DIR
from pipeline.demo.desk import MODEL_SHA256 as DESK_SHA256
from pipeline.demo.desk import is_desk_model


def test_the_kept_weights_are_the_declared_ones() -> None:
    assert digest_file(MODEL_DIR / "model.safetensors") == MODEL_SHA256
    assert digest_file(DESK_DIR / "model.safetensors") == DESK_SHA256
    assert is_demo_model(MODEL_DIR) and not is_demo_model(DESK_DIR)
    assert is_desk_model(DESK_DIR) and not is_desk_model(MODEL_DIR)
