"""The traffic split of a SageMaker endpoint: the weights of its two production variants.

The endpoint draws a variant for each request, so the unit is the request. A variant holds the model whose digest is in
its container's MODEL_DIGEST; a canary without requests is loaded into the free one (sagemaker_models.py). The service
compares no epochs: they are tags of the endpoint, read and written under a lock of the store, which all controllers
share.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pipeline import layout
from pipeline.recipe.rollout import SagemakerTraffic
from pipeline.rollout.evidence import Unit
from pipeline.rollout.router import Readiness, Split, Unsettled
from pipeline.rollout.sagemaker_models import DIGEST, asked, digest_of, load, uri_of
from pipeline.storage import ModelRef, Store

ROLLOUT, EPOCH, CHAMPION, CANARY = (f"preference-tuning:{word}" for word in ("rollout", "epoch", "champion", "canary"))
"""Tags of the endpoint: who asked for these weights, and the digests of the two models (canary: "" for none)."""
TIMEOUT_S = 20.0


class _Variant(NamedTuple):
    """One variant of the endpoint as it is in force."""

    name: str
    digest: str
    uri: str
    weight: float
    instances: int


class _VariantPair(NamedTuple):
    """The endpoint and its tags."""

    arn: str
    status: str
    failure: str
    """Why its last update failed; "" when it did not."""
    variants: tuple[_Variant, ...]
    tags: dict[str, str]

    @property
    def epoch(self) -> int:
        text = self.tags.get(EPOCH, "0")
        if not text.isdecimal():
            raise ValueError(f"Tag {EPOCH} of {self.arn} is {text!r}, which is no number. Restore it.")
        return int(text)


class SagemakerEndpoint:
    """TrafficSplit over one endpoint with two variants."""

    unit: Unit = "request"

    def __init__(
        self,
        store: Store,
        section: SagemakerTraffic,
        model_name: str,
        location: Callable[[ModelRef], str],
        identify: Callable[[str], str] | None = None,
    ) -> None:
        """`location`: where a model's export lies; raises ValueError where it is not there yet. `identify`: digest of
        the model that a variant really serves, by its fingerprint; raises ValueError for one that is not known, OSError
        where it does not answer. None: the variant's container is taken at its word."""
        import boto3
        from botocore.config import Config

        retries: Any = {"mode": "standard", "total_max_attempts": 3}
        settings = Config(connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries=retries)
        # boto3's own types are made at run time.
        self._client: Any = boto3.client("sagemaker", region_name=section.region, config=settings)  # pyright: ignore[reportUnknownMemberType]
        self._store, self._section, self._location, self._identify = store, section, location, identify
        self._lock = layout.rollout(model_name, "sagemaker.lock")

    def read(self) -> Split | Unsettled | None:
        """The weights in force; None when no rollout ever asked for any. Raises as `apply`."""
        endpoint = self._endpoint()
        if not endpoint.epoch:
            return None
        if endpoint.status != "InService":
            return Unsettled(reason=f"endpoint {self._section.endpoint} is {endpoint.status}")
        total = sum(variant.weight for variant in endpoint.variants)
        if total <= 0:
            raise ValueError(f"All variants of {self._section.endpoint} have weight 0. Give one of them the requests.")
        percent = {variant.digest: 100 * variant.weight / total for variant in endpoint.variants}
        refs = {variant.digest: ModelRef(uri=variant.uri, digest=variant.digest) for variant in endpoint.variants}
        champion, canary = endpoint.tags.get(CHAMPION, ""), endpoint.tags.get(CANARY, "")
        weight = percent.get(canary, 0.0) if canary else 0.0
        if champion not in refs or abs(percent[champion] + weight - 100) > 1e-6 or abs(weight - round(weight)) > 1e-3:
            shares = ", ".join(f"{v.name} ({v.digest[:12]}) {percent[v.digest]:.2f}%" for v in endpoint.variants)
            raise ValueError(
                f"{self._section.endpoint} sends {shares}: no whole percentages of champion {champion[:12]} and canary "
                f"{canary[:12] or '(none)'}. Set them by the rollout."
            )
        return Split(
            rollout=endpoint.tags.get(ROLLOUT, ""),
            epoch=endpoint.epoch,
            champion=refs[champion],
            champion_weight=100 - round(weight),
            canary=refs.get(canary, ModelRef(uri="", digest=canary)) if canary else None,
            canary_weight=round(weight),
        )

    def apply(self, split: Split) -> None:
        """Ask for these weights, then have the free variant load a canary that gets no requests yet: call it again
        until `ready` and `read` agree. No effect when the endpoint carries a later epoch.

        Raises ValueError for a model that no variant holds or an endpoint with other variants, OSError when the service
        does not answer.
        """
        if split.shadow_share:
            raise ValueError(f"{self._section.endpoint} cannot copy requests. Set rollout.shadow_share to 0.")
        with self._store.alone(self._lock):
            endpoint = self._endpoint()
            if endpoint.epoch > split.epoch:
                return
            wanted = {variant.name: 0 for variant in endpoint.variants}
            of = {variant.digest: variant.name for variant in endpoint.variants}
            for model, weight in ((split.champion, split.champion_weight), (split.canary, split.canary_weight)):
                if model is None or not weight:
                    continue
                if model.digest not in of:
                    holds = ", ".join(f"{v.name} holds {v.digest[:12] or 'nothing'}" for v in endpoint.variants)
                    raise ValueError(
                        f"{weight}% is for {model.digest[:12]}, and no variant has it: {holds}. Its container's "
                        f"environment says so by {DIGEST}."
                    )
                wanted[of[model.digest]] += weight
            canary = split.canary.digest if split.canary else ""
            tags = {
                ROLLOUT: split.rollout,
                EPOCH: str(split.epoch),
                CHAMPION: split.champion.digest,
                CANARY: canary,
            }
            if tags != {key: endpoint.tags.get(key) for key in tags}:
                listed = [{"Key": key, "Value": value} for key, value in tags.items()]
                asked(lambda: self._client.add_tags(ResourceArn=endpoint.arn, Tags=listed))
            if wanted != {variant.name: variant.weight for variant in endpoint.variants}:
                weights = [
                    {"VariantName": v.name, "DesiredWeight": wanted[v.name], "DesiredInstanceCount": v.instances}
                    for v in endpoint.variants
                ]
                name = self._section.endpoint
                asked(
                    lambda: self._client.update_endpoint_weights_and_capacities(
                        EndpointName=name, DesiredWeightsAndCapacities=weights
                    )
                )
            elif split.canary is not None and split.canary.digest not in of and endpoint.status == "InService":
                named = {model.digest for model in (split.champion, split.warm) if model is not None}
                free = next((v for v in endpoint.variants if v.digest not in named and not v.weight), None)
                if free is not None:
                    model = ModelRef(uri=self._location(split.canary), digest=split.canary.digest)
                    load(self._client, self._section.endpoint, free.name, split.champion, model)

    def ready(self, model: ModelRef) -> Readiness:
        """What the variant of a model really serves. Raises as `apply`."""
        endpoint = self._endpoint()
        variant = next((each for each in endpoint.variants if each.digest == model.digest), None)
        if variant is not None and not variant.weight and endpoint.status != "InService":  # it may be loading
            why = f"{variant.name} has no requests yet, and {self._section.endpoint} is {endpoint.status}"
            return Readiness(served_digest="", replicas=0, reason=why)
        if variant is None or not variant.instances:
            why = "no variant has it" if variant is None else f"{variant.name} has no instances"
            if variant is None and (state := endpoint.failure or endpoint.status.replace("InService", "")):
                why += f", and {self._section.endpoint} says: {state}"
            return Readiness(served_digest="", replicas=0, reason=why)
        try:
            served = variant.digest if self._identify is None else self._identify(variant.name)
        except (OSError, ValueError) as error:
            return Readiness(served_digest="", replicas=variant.instances, reason=f"{variant.name}: {error}")
        wrong = "" if served == model.digest else f"{variant.name} serves {served[:12]}, not {model.digest[:12]}"
        return Readiness(served_digest=served, replicas=variant.instances, reason=wrong)

    def servers(self, model: ModelRef) -> Sequence[str]:
        """None: what is behind a variant answers through the endpoint alone."""
        return ()

    def _endpoint(self) -> _VariantPair:
        """Raises ValueError unless it has the two variants of the recipe, each with a model of its own."""
        name, slots = self._section.endpoint, (self._section.slot_a, self._section.slot_b)
        row = asked(lambda: self._client.describe_endpoint(EndpointName=name))
        config = row["EndpointConfigName"]
        listed = asked(lambda: self._client.describe_endpoint_config(EndpointConfigName=config))["ProductionVariants"]
        models = {variant["VariantName"]: variant["ModelName"] for variant in listed}
        if sorted(models) != sorted(slots):
            raise ValueError(f"{name} has the variants {', '.join(models)}. List {' and '.join(slots)} alone.")
        variants = tuple(self._variant(each, models[each["VariantName"]]) for each in row["ProductionVariants"])
        digests = [variant.digest for variant in variants if variant.digest]
        if len(set(digests)) < len(digests):
            raise ValueError(f"Both variants of {name} hold model {digests[0][:12]}. Give one of them another.")
        tags = asked(lambda: self._client.list_tags(ResourceArn=row["EndpointArn"]))["Tags"]
        return _VariantPair(
            arn=row["EndpointArn"],
            status=row["EndpointStatus"],
            failure=row.get("FailureReason", ""),
            variants=variants,
            tags={tag["Key"]: tag["Value"] for tag in tags},
        )

    def _variant(self, row: dict[str, Any], model: str) -> _Variant:
        described: dict[str, Any] = asked(lambda: self._client.describe_model(ModelName=model))
        return _Variant(
            name=row["VariantName"],
            digest=digest_of(described),
            uri=uri_of(described),
            weight=float(row.get("CurrentWeight", 0.0)),
            instances=int(row.get("CurrentInstanceCount", 0)),
        )
