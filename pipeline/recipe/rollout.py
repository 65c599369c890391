"""Recipe section `rollout`: what routes production's requests, what is measured there, and when traffic may move."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt, model_validator

from pipeline.core.locations import Uri
from pipeline.recipe.compute import DnsLabel, DnsName
from pipeline.recipe.section import Line, Operational, Section

Percent = Annotated[int, Field(ge=0, le=50)]


class GatewayTraffic(Section):
    """This project's gateway on 127.0.0.1: sticky by user, it records what it serves as OpenTelemetry spans."""

    kind: Literal["gateway"] = "gateway"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8400
    """Port on 127.0.0.1 that callers use; 0: one that is free, named in the log."""
    slots: Annotated[tuple[str, ...], Field(max_length=2)] = ()
    """Root URLs of one or two OpenAI-compatible servers that others keep, such as http://10.0.0.1:8000/v1: two that
    hold a model each, or one that takes adapters while it runs; none: it starts what it needs, on this machine."""
    arms: Literal["adapters", "merged"] = "adapters"
    """adapters: champion and candidate on one server, the candidate as an adapter over the champion, where its training
    made one that a server takes so. merged: each model whole, on a server of its own."""
    record: Literal["text", "operations"] = "text"
    """Whether prompts and answers are recorded; without text, answers are counted and timed, and only users grade
    them."""
    trust_user_header: bool = True
    """Whether `x-user-id` is believed; a gateway that strangers reach must not."""
    allowed_hosts: tuple[DnsName, ...] = ()
    """Host names, without a port, that callers may ask it by besides 127.0.0.1, localhost and [::1]: those of a proxy
    before it."""


class HttpRouteTraffic(Section):
    """One HTTPRoute of a Kubernetes gateway, whose two weights the rollout moves."""

    kind: Literal["http_route"] = "http_route"
    namespace: DnsLabel = "preference-tuning-serving"
    """Where the route is."""
    route: DnsName = "model"
    """Its name."""
    slots: ClassVar[tuple[str, str]] = ("slot-a", "slot-b")
    """Its two backends, as the manifests of `k8s/manifests/bases/serving` name them, and the launcher's rights."""


class InferencePoolTraffic(Section):
    """One pool of vLLM servers that hold both arms as adapters, drawn by the weights of an InferenceModelRewrite."""

    kind: Literal["inference_pool"] = "inference_pool"
    namespace: DnsLabel = "preference-tuning-serving"
    """Where the pool is."""
    rewrite: DnsName = "model"
    """Name of the InferenceModelRewrite."""
    pool: DnsLabel = "pool"
    """Name of the InferencePool and of the Service of its pods."""


class NoTraffic(Section):
    """No router that this project moves: candidates are registered, and people deploy them."""

    kind: Literal["none"] = "none"
    """A candidate that passes the gate gets a version and no rollout."""


AnyTraffic = Annotated[
    GatewayTraffic | HttpRouteTraffic | InferencePoolTraffic | NoTraffic, Field(discriminator="kind")
]


class PrometheusMetrics(Section):
    """A Prometheus server, for requests, errors and latencies; quality comes from production's traces by version."""

    url: str
    """Root of its HTTP API, e.g. http://prometheus.monitoring:9090."""
    errors_query: str = ""
    """Requests that got no answer, by `model_name`: the selector of a counter, which is counted as exactly as the
    slots' are, or any PromQL with {window} for the window; "": errors that only the router can see stay unseen, and the
    rollout says so."""
    scrape_interval_s: PositiveFloat = 15.0
    """How often the server scrapes: a window ends two scrapes before now."""
    replicas: PositiveInt = 1
    """Replicas of each slot, of a pool those of its endpoint picker: fewer that are up are a look without metrics."""


class Rollout(Section):
    traffic: Annotated[AnyTraffic, Operational] = GatewayTraffic()
    """What routes production's requests."""
    export_to: Annotated[Uri, Operational] = ""
    """Where the slots of a cluster load their models from: `s3://bucket/prefix`, or a folder that they mount. A
    candidate's weights are brought there and checked before it gets a slot."""
    metrics: Annotated[PrometheusMetrics | None, Operational] = None
    """Where the requests, errors and latencies of both arms come from; null: the gateway's own records, which also give
    grades."""
    weights: tuple[PositiveInt, ...] = (5, 25, 100)
    """Percent of traffic on the canary, stage by stage."""
    dwell_s: tuple[float, ...] = (86_400.0, 604_800.0, 86_400.0)
    """Time observed at each weight before it may rise (seed: 24 h at 5%, 7 days at 25%)."""
    rated_within_s: Annotated[NonNegativeFloat, Operational] = 600.0
    """Where what users say is all that grades: how long an answer may wait for it. What they say later is not counted,
    and a stage's dwell ends so much later."""
    holdback: Percent = 5
    """Percent of traffic that stays with the champion at the last weight, to compare with until the promotion."""
    min_canary_requests: PositiveInt | Literal["auto"] = "auto"
    """Graded canary answers (requests, where nothing can be graded) that each stage has at least. auto: as many as tell
    the stage's own fall of quality with a standard error of `max_quality_drop`."""
    max_quality_drop: Annotated[float, Field(gt=0, le=1)] = 0.03
    """Fall of the share of right answers, champion to canary (seed: 3 percentage points). All stages have to prove
    less, with an error of 5% over all looks: at 70% right half of all equal canaries do by 1,400 graded answers at 5%,
    19 of 20 by 4,100. A stage that proves more rolls the canary back."""
    max_error_rate_ratio: PositiveFloat = 2.0
    """Ratio of the error rates, canary over champion, above which the canary is rolled back once that is proven."""
    max_p99_latency_ratio: PositiveFloat = 1.1
    """Ratio of the 99th percentiles of latency, canary over champion: the canary is rolled back once more than 1% of
    its requests are proven to take longer than that."""
    alpha: float = Field(default=0.05, gt=0, lt=1)
    """Level of the anytime-valid harm test over a whole stage."""
    look_every_s: Annotated[PositiveFloat, Operational] = 60.0
    """Time between two looks of a run that keeps ticking."""
    max_wait_s: PositiveFloat | None = 2_592_000.0
    """How long a stage may go on after its dwell for what it lacks (a proof, answers, grades, its slot), in time that
    usable metrics covered: then it is held with what would help (default: 30 days). null: for ever."""
    slot_usd_per_hour: Annotated[float | None, Operational, Field(ge=0, le=1e6)] = None
    """Price of an hour of the canary's slot, all its servers, for the bill of a rollout. null: of a slot that the
    gateway starts by itself, one device at `compute.accelerator.usd_per_hour`, and none of an adapter on the champion's
    server; of others it is not known."""
    lease_s: PositiveFloat = 3_600.0
    """How long a split with a canary is in force at the gateway without a look: then the champion serves alone."""
    keep_warm_s: NonNegativeFloat = 86_400.0
    """How long the old champion stays loaded after a promotion, as the way back."""
    approvers: tuple[Annotated[Line, Field(min_length=1)], ...] = ()
    """People of whom one has to approve each candidate, who did not propose it; none: the gate's verdict is enough. A
    name with a domain is the account before the `@`."""
    drive_for_s: Annotated[float, Operational] = 0.0
    """How long one run of `canary_rollout` keeps ticking while a dwell is running; 0: one look and done."""
    requests_per_look: Annotated[PositiveInt, Operational] = 600
    """Requests that the simulated users of an embedded world send through the gateway at each look."""
    accept_hold: Annotated[str, Operational] = Field(default="", coerce_numbers_to_str=True)
    """Id of the one iteration whose candidate a person lets into the traffic although its training is on HOLD."""

    @model_validator(mode="after")
    def _metrics_of_the_router(self) -> Rollout:
        if self.traffic.kind in ("http_route", "inference_pool") and not (self.export_to and self.metrics):
            raise ValueError(
                f"rollout.traffic is {self.traffic.kind}. Set rollout.export_to, where its servers load models from, "
                "such as s3://bucket/models, and rollout.metrics, such as {url: http://prometheus:9090}."
            )
        if self.traffic.kind == "gateway" and self.metrics is not None:
            raise ValueError("rollout.traffic is the gateway, which has its own metrics. Leave rollout.metrics out.")
        return self
