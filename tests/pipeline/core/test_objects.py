"""What a store's client is told, and what people are told of its errors."""

import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, NoCredentialsError, SSLError

from pipeline.core.objects import CHECKSUMS, fault, opened, reached


def refusal(code: str, text: str = "No.") -> OSError:
    """As s3fs raises what botocore does."""
    error = OSError(text)
    error.__cause__ = ClientError({"Error": {"Code": code, "Message": text}}, "PutObject")
    return error


@pytest.mark.parametrize(
    ("error", "what", "advice"),
    [
        (refusal("NoSuchBucket"), "NoSuchBucket: No.", "There is no such bucket"),
        (refusal("ExpiredToken"), "ExpiredToken: No.", "keys are not valid, or not any more: renew them"),
        (refusal("RequestTimeTooSkewed"), "RequestTimeTooSkewed", "clock is wrong"),
        (refusal("AccessDenied"), "AccessDenied", "Grant s3:ListBucket"),
        (refusal("NotImplemented"), "NotImplemented", "AWS_REQUEST_CHECKSUM_CALCULATION and"),
        (refusal("InvalidArgument", "Unsupported header 'x-amz-sdk-checksum-algorithm'"), "x-amz", "to when_required"),
        (refusal("MissingContentMD5"), "MissingContentMD5", "wants Content-MD5"),
        (refusal("AuthorizationHeaderMalformed"), "Malformed", "another region: set AWS_DEFAULT_REGION"),
        (refusal("400", "Bad Request"), "400: Bad Request", "all that a HEAD says"),
        (refusal("SomethingNew"), "SomethingNew: No.", "Check the address, the path, the credentials"),
        (NoCredentialsError(), "Unable to locate credentials", "or give this machine a role"),
        (SSLError(endpoint_url="https://s", error="verify failed"), "SSLError", "Set AWS_CA_BUNDLE"),
        (EndpointConnectionError(endpoint_url="http://me:pa55word@s"), "http://***@s", "Check AWS_ENDPOINT_URL"),
        (OSError("AWS Error NO_SUCH_BUCKET during PutObject operation"), "NO_SUCH_BUCKET", "There is no such bucket"),
        (ImportError("Please install gcsfs"), "Please install gcsfs", "pip install preference-tuning[gs]"),
    ],
)
def test_an_error_says_what_to_do(error: Exception, what: str, advice: str) -> None:
    assert what in fault(error) and advice in fault(error) and fault(error).endswith(".")


def test_a_disk_says_its_own_errors_and_a_store_ours() -> None:
    with pytest.raises(PermissionError, match="no entry"), reached("/folder"):
        raise PermissionError("no entry")
    with (
        pytest.raises(ConnectionError, match=r"^s3://b/p cannot be reached: AccessDenied: No\. Grant"),
        reached("s3://b/p"),
    ):
        raise refusal("AccessDenied")


OTHERS = {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"}
CHOSEN = dict.fromkeys((f"AWS_{name.upper()}" for name in CHECKSUMS), "when_supported")


@pytest.mark.parametrize(
    ("variables", "checksums", "attempts"),
    [
        ({}, "when_supported", 8),
        ({"AWS_ENDPOINT_URL_S3": "https://s3.eu-west-1.amazonaws.com", **OTHERS}, "when_supported", 8),
        (OTHERS, "when_required", 8),
        ({**OTHERS, **CHOSEN, "AWS_MAX_ATTEMPTS": "2"}, "when_supported", 2),
    ],
)
def test_what_the_user_set_stays(
    variables: dict[str, str], checksums: str, attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"AWS_DEFAULT_REGION": "eu-west-1", **variables}.items():
        monkeypatch.setenv(name, value)
    files, root = opened("s3://bucket/prefix/")
    config = files.s3.meta.config
    assert root == "bucket/prefix"
    assert [getattr(config, name) for name in CHECKSUMS] == [checksums] * 2
    assert config.retries == {"mode": "standard", "total_max_attempts": attempts}
