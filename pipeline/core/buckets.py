"""Whether an `s3://` prefix can be listed: one short attempt, for checks before any work."""

TIMEOUT_S = 3.0
KEYS = "Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY (or AWS_PROFILE), or give this machine a role."
DENIED = ("AccessDenied", "AllAccessDisabled", "403")
WRONG_KEYS = ("InvalidAccessKeyId", "SignatureDoesNotMatch", "InvalidToken", "ExpiredToken")
ELSEWHERE = ("PermanentRedirect", "AuthorizationHeaderMalformed", "301")


def is_bucket(uri: str) -> bool:
    return uri.startswith(("s3://", "s3a://"))


def bucket_fault(uri: str, *, may_be_empty: bool = False) -> str:
    """Why no object can be listed below `s3://bucket/prefix`, with what to do; "" when one can. `may_be_empty`: no
    object is needed."""
    from botocore import exceptions
    from botocore.config import Config
    from botocore.session import get_session

    bucket, _, prefix = uri.partition("://")[2].partition("/")
    settings = Config(connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries={"total_max_attempts": 1})
    try:
        client = get_session().create_client("s3", config=settings)
        # An export of one file is listed as well as a folder.
        if client.list_objects_v2(Bucket=bucket, Prefix=prefix.strip("/"), MaxKeys=1).get("KeyCount") or may_be_empty:
            return ""
    except exceptions.ClientError as error:
        return refusal(uri, bucket, str(error.response.get("Error", {}).get("Code", "")), error)
    except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError, exceptions.ProfileNotFound) as error:
        return f"{uri}: there are no credentials for S3 ({error}). {KEYS}"
    except (exceptions.BotoCoreError, ValueError) as error:
        return f"{uri} cannot be reached ({error}). Check the address, AWS_ENDPOINT_URL and the network."
    return f"{uri} holds no object. Point it to the folder of the traces."


def refusal(uri: str, bucket: str, code: str, error: Exception) -> str:
    if code in ("NoSuchBucket", "404"):
        why = f"there is no bucket {bucket}. Check its name, the account of the credentials and AWS_ENDPOINT_URL."
    elif code in DENIED:
        why = f"these credentials may not list the bucket {bucket} ({code}). Grant s3:ListBucket and s3:GetObject."
    elif code in WRONG_KEYS:
        why = f"the credentials for S3 are not valid ({code}). {KEYS}"
    elif code in ELSEWHERE:
        why = f"the bucket {bucket} is in another region ({code}). Set AWS_DEFAULT_REGION to it."
    else:
        why = f"it cannot be listed ({error}). Check the address, the credentials and AWS_ENDPOINT_URL."
    return f"{uri}: {why}"
