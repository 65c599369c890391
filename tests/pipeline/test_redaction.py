import pytest

from pipeline.redaction import HIDDEN, redacted

SECRET = "s3cr3t-canary-0123456789"


@pytest.mark.parametrize(
    "text",
    [
        f"postgresql://ann:{SECRET}@db:5432/traces",
        f"https://{SECRET}@host/path",
        f"http://catalogue/v1?token={SECRET}&warehouse=w",
        f"api_key: {SECRET}",
        f"{{'api_key': '{SECRET}', 'model': 'm'}}",
        f'{{"password": "{SECRET} with spaces"}}',
        f"AWS_SECRET_ACCESS_KEY={SECRET}",
        f"OPENAI_API_KEY={SECRET}",
        f"MLFLOW_TRACKING_PASSWORD={SECRET}",
        f"hf_token: {SECRET}",
        f"Authorization: Bearer {SECRET}",
        f"given sk-{SECRET} and more",
        f"ghp_{SECRET.replace('-', '')}",
        f"hf_{SECRET.replace('-', '')}",
        f"glpat-{SECRET}",
    ],
)
def test_a_secret_is_hidden(text: str) -> None:
    shown = redacted(text)
    assert SECRET not in shown and SECRET.replace("-", "") not in shown
    assert HIDDEN in shown


@pytest.mark.parametrize(
    "text",
    [
        "training.dpo.max_tokens=512",
        "max_tokens: 512, tokens: many",
        "token: null",
        "traces.consent_key=user_consent",
        "s3://bucket/prefix/ask-me.yaml",
        "/models/champion@2",
        "rollout.weights=[5, 25, 100]",
        "the key 'a' is there twice; the first would be dropped",
        "models:/assistant@champion",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text
