"""Gives a variant of a SageMaker endpoint another model: a model, a configuration, and an update of the endpoint.

The model is the champion's in all but its weights: image, role, network and environment, where the champion's digest
becomes the candidate's, so that its server gives the candidate's name. The weights are an export (export.py), which was
checked there. The configuration is the one in force with that one variant changed, and the service retains weights and
instances. Names are made of digests: an attempt that was cut off goes on where it was. Removes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pipeline.storage import ModelRef, digest_json

DIGEST = "MODEL_DIGEST"
"""In a container's environment: the digest of what it serves."""
LATER = frozenset({"ThrottlingException", "ServiceUnavailable", "InternalFailure", "RequestTimeout"})
"""Codes of refusals that time may mend."""
OF_MODEL = ("ExecutionRoleArn", "VpcConfig", "EnableNetworkIsolation")
OF_CONFIG = ("DataCaptureConfig", "KmsKeyId", "AsyncInferenceConfig", "ExplainerConfig", *OF_MODEL)
OF_CONTAINER = ("Image", "ImageConfig", "ContainerHostname")
RIGHTS = (
    "Loading a model takes sagemaker:CreateModel, CreateEndpointConfig and UpdateEndpoint, and iam:PassRole of its role"
)
HEAD = 12

T = TypeVar("T")


def load(client: Any, endpoint: str, variant: str, like: ModelRef, model: ModelRef) -> None:
    """Begin to give a variant, which gets no requests, that model. `like`: the model of another variant of the
    endpoint, whose container it is served in. `model.uri`: where its export lies.

    Raises ValueError where that is not S3, the endpoint is not as expected, or the service refuses; OSError when it
    does not answer.
    """
    if not model.uri.startswith("s3://"):
        raise ValueError(f"SageMaker loads models from S3, and {model.uri} is elsewhere. Set rollout.export_to.")
    config = asked(lambda: client.describe_endpoint(EndpointName=endpoint))["EndpointConfigName"]
    present = asked(lambda: client.describe_endpoint_config(EndpointConfigName=config))
    rows: list[dict[str, Any]] = present["ProductionVariants"]
    models = {
        row["VariantName"]: asked(lambda row=row: client.describe_model(ModelName=row["ModelName"])) for row in rows
    }
    template = next((each for each in models.values() if digest_of(each) == like.digest), None)
    if template is None or variant not in models:
        raise ValueError(f"{endpoint} has no variant that holds {like.digest[:HEAD]} beside {variant}. Restore it.")
    name = _name(endpoint, variant, model.digest[:HEAD])
    _create(client, name, template, like, model)
    wanted = [{**row, "ModelName": name} if row["VariantName"] == variant else row for row in rows]
    kept = {key: present[key] for key in OF_CONFIG if present.get(key)}
    target = _name(endpoint, "config", digest_json([wanted, kept])[:HEAD])
    if not _exists(lambda: client.describe_endpoint_config(EndpointConfigName=target)):
        asked(
            lambda: client.create_endpoint_config(EndpointConfigName=target, ProductionVariants=wanted, **kept), RIGHTS
        )
    asked(
        lambda: client.update_endpoint(
            EndpointName=endpoint, EndpointConfigName=target, RetainAllVariantProperties=True
        ),
        RIGHTS,
    )


def digest_of(model: dict[str, Any]) -> str:
    """Of the model that a container says it serves; "" where it says none."""
    return str(model.get("PrimaryContainer", {}).get("Environment", {}).get(DIGEST, ""))


def uri_of(model: dict[str, Any]) -> str:
    """Where a model's weights lie."""
    container: dict[str, Any] = model.get("PrimaryContainer", {})
    source: dict[str, Any] = container.get("ModelDataSource", {}).get("S3DataSource", {})
    return str(source.get("S3Uri") or container.get("ModelDataUrl", "")).rstrip("/")


def asked(call: Callable[[], T], advice: str = "Check rollout.traffic and the rights") -> T:
    """What the service answers. Raises ValueError for a refusal, with `advice`, OSError for one that may pass."""
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        return call()
    except ClientError as error:
        refusal: dict[str, Any] = error.response.get("Error", {})
        if refusal.get("Code") in LATER:
            raise ConnectionError(f"SageMaker answers {refusal.get('Code')}: {refusal.get('Message')}") from error
        raise ValueError(f"SageMaker refuses ({refusal.get('Code')}: {refusal.get('Message')}). {advice}.") from error
    except BotoCoreError as error:
        raise ConnectionError(
            f"SageMaker cannot be reached ({error}). Check region, credentials and network."
        ) from error


def _create(client: Any, name: str, template: dict[str, Any], like: ModelRef, model: ModelRef) -> None:
    """The model of that name, unless it is there; its name holds its digest."""
    given: dict[str, Any] = template["PrimaryContainer"]
    served: dict[str, str] = given.get("Environment", {})
    renamed = {key: value.replace(like.digest[:HEAD], model.digest[:HEAD]) for key, value in served.items()}
    source = {"S3Uri": f"{model.uri.rstrip('/')}/", "S3DataType": "S3Prefix", "CompressionType": "None"}
    container = {
        **{key: given[key] for key in OF_CONTAINER if given.get(key)},
        "Environment": {**renamed, DIGEST: model.digest},
        "ModelDataSource": {"S3DataSource": source},
    }
    if there := _exists(lambda: client.describe_model(ModelName=name)):
        if (digest_of(there), uri_of(there)) != (model.digest, model.uri.rstrip("/")):
            raise ValueError(f"SageMaker has a model {name} of {uri_of(there) or 'no place'}. Remove it.")
        return
    kept = {key: template[key] for key in OF_MODEL if template.get(key)}
    asked(lambda: client.create_model(ModelName=name, PrimaryContainer=container, **kept), RIGHTS)


def _exists(describe: Callable[[], dict[str, Any]]) -> dict[str, Any] | None:
    """What there is of that name. The service says that there is none by a refusal of its own."""
    from botocore.exceptions import ClientError

    try:
        return describe()
    except ClientError as error:
        refusal: dict[str, Any] = error.response.get("Error", {})
        if "could not find" in str(refusal.get("Message", "")).lower():
            return None
        return asked(describe)


def _name(*parts: str) -> str:
    """At most 63 characters; of a long endpoint's name only the beginning is in it."""
    rest = "-".join(parts[1:])
    return f"{parts[0][: 62 - len(rest)].rstrip('-')}-{rest}"
