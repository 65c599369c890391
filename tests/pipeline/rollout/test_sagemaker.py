"""The SageMaker port over HTTP, at moto's server."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pipeline.recipe.rollout import SagemakerTraffic
from pipeline.rollout.router import Split, Unsettled
from pipeline.rollout.sagemaker import SagemakerEndpoint
from pipeline.rollout.sagemaker_models import load
from pipeline.storage import ModelRef, Store
from tests.endpoints import taking_configurations
from tests.servers import s3

pytestmark = pytest.mark.slow

REGION, ROLE = "us-east-1", "arn:aws:iam::123456789012:role/x"
A, B, C = (ModelRef(uri=f"s3://models/{letter}", digest=letter * 64) for letter in "abc")


def split(canary: int, epoch: int, champion: ModelRef = A, other: ModelRef | None = B) -> Split:
    weights = {"champion_weight": 100 - canary, "canary_weight": canary}
    return Split(rollout="r", epoch=epoch, champion=champion, canary=other, **weights)


class Service:
    """An endpoint whose variants hold A and B, and who answers there."""

    def __init__(self, root: Path) -> None:
        import boto3

        self.name = f"model-{uuid.uuid4().hex[:8]}"
        self.root, self.exported = root, [C]
        self.updates: list[str] = []
        self.serves: dict[str, str | Exception] = {"slot-a": A.digest, "slot-b": B.digest}
        self.client: Any = boto3.client("sagemaker", region_name=REGION)
        self.put({"slot-a": A, "slot-b": B})

    def put(self, variants: dict[str, ModelRef]) -> None:
        listed = []
        for slot, model in variants.items():
            name = f"{self.name}-{slot}"
            served = {"MODEL_DIGEST": model.digest, "SERVED_NAMES": f"model@{model.digest[:12]} model"}
            container = {"Image": "vllm", "ModelDataUrl": model.uri, "Environment": served}
            self.client.create_model(ModelName=name, PrimaryContainer=container, ExecutionRoleArn=ROLE)
            kind = {"InstanceType": "ml.t2.medium", "InitialInstanceCount": 2}
            weight = 1.0 if slot == "slot-a" else 0.0
            listed.append({"VariantName": slot, "ModelName": name, "InitialVariantWeight": weight, **kind})
        self.client.create_endpoint_config(EndpointConfigName=self.name, ProductionVariants=listed)
        self.client.create_endpoint(EndpointName=self.name, EndpointConfigName=self.name)

    def port(self) -> SagemakerEndpoint:
        section = SagemakerTraffic(endpoint=self.name, region=REGION)
        return SagemakerEndpoint(Store(self.root), section, "model", self._location, self._identify)

    def container(self, slot: str) -> dict[str, Any]:
        config = self.client.describe_endpoint(EndpointName=self.name)["EndpointConfigName"]
        rows = self.client.describe_endpoint_config(EndpointConfigName=config)["ProductionVariants"]
        name = next(row["ModelName"] for row in rows if row["VariantName"] == slot)
        return self.client.describe_model(ModelName=name)

    def weights(self) -> dict[str, float]:
        rows = self.client.describe_endpoint(EndpointName=self.name)["ProductionVariants"]
        return {row["VariantName"]: row.get("CurrentWeight", 0.0) for row in rows}

    def change(self, **weights: float) -> None:
        """What an operator does."""
        listed = [{"VariantName": n.replace("_", "-"), "DesiredWeight": w} for n, w in weights.items()]
        self.client.update_endpoint_weights_and_capacities(EndpointName=self.name, DesiredWeightsAndCapacities=listed)

    def become(self, status: str) -> None:
        from moto.backends import get_backend

        get_backend("sagemaker")["123456789012"][REGION].endpoints[self.name].endpoint_status = status

    def _location(self, model: ModelRef) -> str:
        if model not in self.exported:
            raise ValueError(f"Model {model.digest[:12]} is not exported to s3://models.")
        return f"{model.uri}/{model.digest}"

    def _identify(self, variant: str) -> str:
        served = self.serves[variant]
        if isinstance(served, Exception):
            raise served
        return served


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    with s3() as endpoint:
        keys = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_ENDPOINT_URL": endpoint}
        for name, value in keys.items():
            monkeypatch.setenv(name, value)
        yield Service(tmp_path)


def test_applied_weights_are_those_of_the_endpoint(service: Service) -> None:
    port = service.port()
    assert port.read() is None and port.unit == "request"
    port.apply(split(5, epoch=1))
    assert service.weights() == {"slot-a": 95, "slot-b": 5}
    assert port.read() == split(5, epoch=1)
    port.apply(split(0, epoch=2, champion=B, other=None))
    assert port.read() == split(0, epoch=2, champion=B, other=None)
    rows = service.client.describe_endpoint(EndpointName=service.name)["ProductionVariants"]
    assert [row["CurrentInstanceCount"] for row in rows] == [2, 2], "instances stay"


def test_an_earlier_epoch_changes_no_weight(service: Service) -> None:
    service.port().apply(split(0, epoch=9))
    service.port().apply(split(25, epoch=8))
    assert service.port().read() == split(0, epoch=9)


def test_an_endpoint_that_updates_is_unsettled(service: Service) -> None:
    service.port().apply(split(5, epoch=1))
    service.become("Updating")
    result = service.port().read()
    assert isinstance(result, Unsettled) and "is Updating" in result.reason


def test_weights_set_by_hand_are_read_as_shares(service: Service) -> None:
    service.port().apply(split(25, epoch=1))
    service.change(slot_a=1.0, slot_b=0.0)
    assert service.port().read() == split(0, epoch=1)
    service.change(slot_a=2.0, slot_b=1.0)
    with pytest.raises(ValueError, match=r"slot-b \(bbbbbbbbbbbb\) 33\.33%: no whole percentages"):
        service.port().read()
    service.change(slot_a=0.0, slot_b=0.0)
    with pytest.raises(ValueError, match="have weight 0"):
        service.port().read()
    service.port().apply(split(0, epoch=2))
    assert service.weights() == {"slot-a": 100, "slot-b": 0}


def test_a_model_without_a_variant_gets_no_weight(service: Service) -> None:
    with pytest.raises(ValueError, match="no variant has it: slot-a holds aaaaaaaaaaaa"):
        service.port().apply(split(5, epoch=1, other=C))
    assert service.weights() == {"slot-a": 1.0, "slot-b": 0.0}


@pytest.fixture
def updating(service: Service, monkeypatch: pytest.MonkeyPatch) -> Service:
    service.updates = taking_configurations(monkeypatch, "Updating")
    return service


def test_a_canary_without_requests_is_loaded(updating: Service) -> None:
    """The champion's container in all but its weights, into the variant that has no requests; then weights as ever."""
    port, loading = updating.port(), split(0, epoch=1, other=C)
    port.apply(loading)
    assert updating.container("slot-a")["PrimaryContainer"]["Environment"]["MODEL_DIGEST"] == A.digest
    port.apply(loading)
    model = updating.container("slot-b")
    assert model["PrimaryContainer"] == {
        "Image": "vllm",
        "Environment": {"MODEL_DIGEST": C.digest, "SERVED_NAMES": f"model@{C.digest[:12]} model"},
        "ModelDataSource": {
            "S3DataSource": {
                "S3Uri": f"{C.uri}/{C.digest}/",
                "S3DataType": "S3Prefix",
                "CompressionType": "None",
            }
        },
    }
    assert model["ExecutionRoleArn"] == ROLE
    port.apply(loading)
    assert len(updating.updates) == 1, "it is being updated: nobody asks again"
    assert "slot-b has no requests yet, and" in port.ready(C).reason
    updating.become("InService")
    port.apply(loading)
    assert (port.ready(C).replicas, updating.weights()) == (2, {"slot-a": 100, "slot-b": 0})
    updating.serves["slot-b"] = C.digest
    assert port.ready(C).reason == ""
    port.apply(split(5, epoch=2, other=C))
    seen = port.read()
    assert isinstance(seen, Split) and seen.routes_like(split(5, epoch=2, other=C))
    assert seen.canary == ModelRef(uri=f"{C.uri}/{C.digest}", digest=C.digest)


def test_a_load_that_was_cut_off_goes_on(updating: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    port, loading = updating.port(), split(0, epoch=1, other=C)
    port.apply(loading)
    real = port._client.update_endpoint

    def cut(**asked: Any) -> None:
        raise ConnectionError("the process ended")

    monkeypatch.setattr(port._client, "update_endpoint", cut)
    with pytest.raises(ConnectionError):
        port.apply(loading)
    assert port.ready(C).reason == "no variant has it"
    monkeypatch.setattr(port._client, "update_endpoint", real)
    port.apply(loading)
    assert updating.container("slot-b")["PrimaryContainer"]["Environment"]["MODEL_DIGEST"] == C.digest


def test_what_has_requests_is_not_replaced(updating: Service) -> None:
    port = updating.port()
    port.apply(split(5, epoch=1))
    port.apply(split(0, epoch=2, other=C))
    assert updating.weights() == {"slot-a": 100, "slot-b": 0}, "first its requests go"
    assert updating.container("slot-b")["PrimaryContainer"]["Environment"]["MODEL_DIGEST"] == B.digest


def test_what_cannot_be_loaded_is_refused(updating: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    from botocore.exceptions import ClientError

    port, loading = updating.port(), split(0, epoch=1, other=C)
    port.apply(loading)
    denied = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "CreateModel")
    monkeypatch.setattr(port._client, "create_model", lambda **asked: (_ for _ in ()).throw(denied))
    with pytest.raises(ValueError, match=r"refuses \(AccessDeniedException: no\). Loading a model takes .*PassRole"):
        port.apply(loading)
    updating.exported.clear()
    with pytest.raises(ValueError, match="is not exported"):
        port.apply(loading)
    elsewhere = ModelRef(uri="/models/c", digest=C.digest)
    with pytest.raises(ValueError, match=r"loads models from S3, and /models/c is elsewhere"):
        load(port._client, updating.name, "slot-b", A, elsewhere)


@pytest.mark.parametrize(
    ("variants", "words"),
    [
        ({"slot-a": A, "slot-b": B, "mirror": C}, "has the variants slot-a, slot-b, mirror"),
        ({"slot-a": A}, "has the variants slot-a"),
        ({"slot-a": A, "slot-b": A}, "hold model aaaaaaaaaaaa"),
    ],
)
def test_an_endpoint_of_other_variants_is_refused(service: Service, variants: dict[str, ModelRef], words: str) -> None:
    service.name = f"other-{uuid.uuid4().hex[:8]}"
    service.put(variants)
    for call in (service.port().read, lambda: service.port().apply(split(5, epoch=1))):
        with pytest.raises(ValueError, match=words):
            call()


def test_a_variant_is_ready_by_what_it_serves(service: Service) -> None:
    port = service.port()
    ready = port.ready(B)
    assert (ready.served_digest, ready.replicas, ready.reason) == (B.digest, 2, "")
    service.serves["slot-b"] = A.digest
    assert "slot-b serves aaaaaaaaaaaa, not bbbbbbbbbbbb" in port.ready(B).reason
    service.serves["slot-b"] = ConnectionError("no answer")
    assert port.ready(B).reason == "slot-b: no answer"
    assert port.ready(C).reason == "no variant has it"


def test_a_service_that_is_away_is_an_os_error(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with pytest.raises(OSError, match="cannot be reached"):
        service.port().read()


def test_an_endpoint_that_is_not_there_is_refused(service: Service) -> None:
    service.name = "absent"
    with pytest.raises(ValueError, match="Check rollout"):
        service.port().read()
