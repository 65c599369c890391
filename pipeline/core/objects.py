"""Object stores and folders through fsspec: the one place that opens a file system for a URI, with the retries and the
checksums that its store takes, and that says what to do about its errors."""

from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

from pipeline.core.redaction import redacted

PATIENT, QUICK = (8, 60.0), (3, 5.0)
"""Attempts, and seconds until one is given up; the second for what is asked before a run: enough for one 503."""
CONNECT_S = 10.0
CHECKSUMS = ("request_checksum_calculation", "response_checksum_validation")
ADVICE = {
    "nosuchbucket bucketdoesnotexist containernotfound": "There is no such bucket: correct its name, AWS_ENDPOINT_URL "
    "or AWS_PROFILE, or create it",
    "requesttimetooskewed": "This machine's clock is wrong: set it",
    "expiredtoken tokenhasexpired ssosession invalidaccesskeyid invalidtoken tokenrefresh signaturedoesnotmatch":
    "The keys are not valid, or not any more: renew them in the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, "
    "AWS_SESSION_TOKEN) or in the file of AWS_PROFILE; the next session reads both",
    "unabletolocatecredentials partialcredentials profilenotfound": "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
    "or AWS_PROFILE, or give this machine a role",
    "authorizationheadermalformed permanentredirect illegallocationconstraint": "The bucket is in another region: set "
    "AWS_DEFAULT_REGION to that, or AWS_ENDPOINT_URL to its address",
    "missingcontentmd5": "The store wants Content-MD5, which today's clients do not send: update the store",
    "notimplemented x-amz-checksum x-amz-sdk-checksum x-amz-trailer contentsha256mismatch": "The store does not know "
    "what was sent: set AWS_REQUEST_CHECKSUM_CALCULATION and AWS_RESPONSE_CHECKSUM_VALIDATION to when_required",
    "slowdown serviceunavailable internalerror": "The store is overloaded or broken: try again later",
    "quotaexceeded storagefull": "The store is full: free space there, or raise the quota",
    "accessdenied forbidden permissionmismatch": "Grant s3:ListBucket, s3:GetObject, s3:PutObject, s3:DeleteObject, "
    "s3:AbortMultipartUpload and s3:GetBucketVersioning, or what your store calls them",
    "certificate sslerror sslcacert": "Set AWS_CA_BUNDLE to the file of the authority that signs the store's key",
    "couldnotconnect cannotconnect timeout connectionclosed connectionreset nameresolution networkconnection": "Check "
    "AWS_ENDPOINT_URL, the network and HTTPS_PROXY",
    "badrequest": "That is all that a HEAD says: mostly the keys are not valid any more, or the region is another",
    "filenotfounderror resourcenotfound": "It is not there: correct the address",
    "importerror protocolnotknown": "Install its driver: adlfs for abfs://, and for gs:// pip install "
    "preference-tuning[gs]",
}  # fmt: skip
"""What an error's code or text holds, in lower case without blanks and underscores, to what to do about it."""


def is_bucket(uri: str) -> bool:
    """Whether its store speaks S3."""
    return uri.startswith(("s3://", "s3a://"))


def is_aws(endpoint: str | None) -> bool:
    """Whether this address of S3, or none, is AWS's."""
    return not endpoint or (urlsplit(endpoint).hostname or "").endswith((".amazonaws.com", ".amazonaws.com.cn"))


def opened(uri: str, *, is_quick: bool = False, **options: Any) -> tuple[Any, str]:
    """A file system of its own, which sees what others change, and the path of `uri` in it. Its session reads the
    environment and the files of AWS now; what they say of retries and checksums stays. Makes no connection. Raises
    ValueError where no driver takes the URI."""
    from fsspec.core import url_to_fs
    from fsspec.implementations.local import LocalFileSystem

    if is_bucket(uri):
        from botocore.exceptions import BotoCoreError
        from botocore.session import get_session

        attempts, read_s = QUICK if is_quick else PATIENT
        wanted: dict[str, Any] = {"retry_mode": "standard", "max_attempts": attempts}
        with suppress(BotoCoreError):  # a profile that is not there: the first request says so
            names = ["AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"]
            session = get_session({"endpoint": ("endpoint_url", names, None, None)})
            if not is_aws(session.get_config_variable("endpoint")):
                wanted |= dict.fromkeys(CHECKSUMS, "when_required")  # other stores may not know them
        defaults = {name: (name, f"AWS_{name.upper()}", value, type(value)) for name, value in wanted.items()}
        timeouts = {"connect_timeout": min(read_s, CONNECT_S), "read_timeout": read_s}
        options |= {"session_vars": defaults, "config_kwargs": timeouts}
    elif uri.startswith(("gs://", "gcs://")):
        options |= {"session_kwargs": {"trust_env": True}}  # HTTPS_PROXY, which other drivers read by themselves
    try:
        files, path = url_to_fs(uri, use_listings_cache=False, skip_instance_cache=True, **options)
    except (ImportError, ValueError) as error:
        raise ValueError(f"{uri} cannot be opened: {fault(error)}") from error
    if isinstance(files, LocalFileSystem):
        files.auto_mkdir = True
    elif is_quick:
        files.retries = 1  # s3fs tries each of these several times
    return files, path.rstrip("/")


def fault(error: BaseException) -> str:
    """Why a store or a disk did not do what was asked, without secrets, and what to do."""
    answer: dict[str, Any] = {}
    link: BaseException | None = error
    while link is not None and not answer:  # botocore's error is the cause of s3fs' own, which has no code
        response: Any = getattr(link, "response", None)
        answer, link = response["Error"] if isinstance(response, dict) else {}, link.__cause__
    text = redacted(f"{answer.get('Code') or type(error).__name__}: {answer.get('Message') or error}").split()
    words = "".join(text).lower().replace("_", "")
    found = (advice for names, advice in ADVICE.items() if any(name in words for name in names.split()))
    advice = next(found, "Check the address, the path, the credentials and their rights")
    return f"{' '.join(text)[:300].rstrip('.')}. {advice}."


@contextmanager
def reached(uri: str) -> Generator[None]:
    """Turns what a store's client raises into ConnectionError with what to do. ValueError and a disk's OSError stay."""
    try:
        yield
    except Exception as error:  # the boundary of fsspec: each backend raises its own exceptions
        is_store = "://" in uri.removeprefix("file://")
        if isinstance(error, ValueError if is_store else ValueError | OSError):
            raise
        raise ConnectionError(f"{uri} cannot be reached: {fault(error)}") from error


def paths_below(files: Any, root: str) -> list[str]:
    """Of all objects below `root`. Raises what the driver raises where the bucket is not there."""
    found: list[str] = files.find(root)
    if not found and "abfs" in files.protocol:  # whose `find` says the same of an empty container and of none
        files.ls(root.partition("/")[0])
    return found


def kept_versions(uri: str) -> str:
    """What a proof has to say of the versions of deleted objects; "" where none are kept. Raises nothing."""
    if "://" not in uri.removeprefix("file://"):
        return ""
    what = "whether the store keeps versions of deleted files is unknown (s3:GetBucketVersioning). If so, expire them"
    with suppress(Exception):  # the boundary of fsspec: what refuses to say is not known, and only S3 can be asked
        files, root = opened(uri)
        if not files.call_s3("get_bucket_versioning", Bucket=root.partition("/")[0]).get("Status"):
            return ""
        what = "the bucket keeps versions, and those of deleted files stay. Expire noncurrent versions"
    return f"{what} by a lifecycle rule"
