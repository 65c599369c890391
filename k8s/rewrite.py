"""The traffic split of one pool of servers: the targets of an InferenceModelRewrite, by which the endpoint picker of an
InferencePool draws the model of each request. Each server holds both arms, as adapters over one base.

The API is llm-d.ai/v1alpha2 of llm-d-router 0.9 and 0.10 (config/crd/bases/llm-d.ai_inferencemodelrewrites.yaml; before
that inference.networking.x-k8s.io/v1alpha2). A weight is 1 at least, so a canary without requests is no target. The
picker only reads the object: no status says that it took a change."""

from collections.abc import Callable, Mapping
from typing import Any

from k8s.annotated import AnnotatedObject, asked_by
from k8s.client import ApiResource, KubernetesClient
from k8s.slots import CONFIG_MAP, PodAnswer, asked, of_each, reached, readiness_of, servers
from pipeline.core.storage import ModelRef
from pipeline.recipe.rollout import InferencePoolTraffic
from pipeline.rollout.router import Identify, Readiness, Split, Unsettled
from pipeline.serving.adapters import ServedAdapter, load_adapter, unload_adapter
from pipeline.serving.endpoint import Endpoint, digest_head, served_name, served_names
from pipeline.serving.model_places import exported_uri

MODEL_REWRITE = ApiResource("llm-d.ai", "v1alpha2", "inferencemodelrewrites")
POOL_GROUP = "inference.networking.k8s.io"
MANIFESTS = "k8s/manifests/components/pool"
ADAPTERS = "/adapters"
"""Where the pods mount the place that models are exported to."""
BASE, MODULES = "LORA_BASE", "LORA_MODULES"
"""Keys of the ConfigMap `<pool>-adapters`: with what a pod over that base starts, as --lora-modules takes it."""


class PoolRewrite:
    """TrafficSplit over the rule of one InferenceModelRewrite that matches the model's name. Rules of others stay."""

    def __init__(
        self,
        client: KubernetesClient,
        section: InferencePoolTraffic,
        model_name: str,
        identify: Identify,
        location: Callable[[ModelRef], str],
        adapters: Callable[[], Mapping[str, ServedAdapter]],
    ) -> None:
        """`model_name`: what callers ask for. `identify`: tells what a pod answers by under a name. `location`: raises
        ValueError while a model is not exported. `adapters`: the models that are adapters, by digest."""
        self._client, self._section, self._name = client, section, model_name
        self._identify, self._location, self._adapters = identify, location, adapters
        self._object = AnnotatedObject(
            client, MODEL_REWRITE, "InferenceModelRewrite", section.namespace, section.rewrite, MANIFESTS
        )

    def read(self) -> Split | Unsettled | None:
        """What the picker was given to draw by; None when no rollout ever asked for anything.

        Raises ValueError for an object that is not as this project ships it, OSError when nobody answers.
        """
        obj, by = self._object.read()
        weights = _targets(obj, self._rule(obj))
        if not by.epoch:
            return None
        champion, canary = (self._served(digest) for digest in (by.champion, by.canary))
        if weights.keys() - {champion, canary} or sum(weights.values()) != 100:
            shown = ", ".join(f"{name} {weight}" for name, weight in weights.items())
            raise ValueError(
                f"The targets of {self._object.where} are {shown}. Set percentages of {champion} and "
                f"{canary or 'no other'} that sum to 100."
            )
        split = Split(
            rollout=by.rollout,
            epoch=by.epoch,
            champion=self._ref(by.champion),
            champion_weight=weights.get(champion, 0),
            canary=self._ref(by.canary) if by.canary else None,
            canary_weight=weights.get(canary, 0),
        )
        reason = self._not_in_force(obj)
        return Unsettled(reason=reason, asked=split) if reason else split

    def apply(self, split: Split) -> None:
        """Ask for these weights, and have every ready pod hold the split's models; one that it does not name is taken
        from them by the next call. No effect when the object carries a later epoch, or the same one and a lower weight,
        which a person set.

        A canary gets no more weight until every pod holds it; less at once, whatever the pods say. Raises ValueError
        with the words of a pod that does not take an adapter, OSError when nobody answers.
        """
        canary = self._served(split.canary.digest) if split.canary else ""
        wanted = {self._served(split.champion.digest): split.champion_weight, canary: split.canary_weight}
        wanted = {name: weight for name, weight in wanted.items() if weight}
        for obj, by in self._object.tries():
            if by.epoch > split.epoch:
                return
            rule = self._rule(obj)
            weights = _targets(obj, rule)
            if (by, weights) == (asked_by(split), wanted):
                self._hold(split, unload=True)
                return
            if by.epoch == split.epoch and weights.get(canary, 0) < split.canary_weight:
                return  # a person took requests from the canary
            if split.canary_weight > weights.get(canary, 0) or not by.epoch:
                self._hold(split)
            targets = [{"modelRewrite": name, "weight": weight} for name, weight in wanted.items()]
            path = f"/spec/rules/{rule}/targets"
            if self._object.patched(obj, [{"op": "add", "path": path, "value": targets}], asked_by(split)):
                self._hold(split)
                return

    def ready(self, model: ModelRef) -> Readiness:
        """What the pods answer by under the model's name, and how many of them; the reason where that is not it."""
        name, pods = self._served(model.digest), servers(self._client, self._section.namespace, self._section.pool)
        if not pods:
            return Readiness(reason=f"no pod of {self._section.pool} is ready")

        def ask(pod: str, url: str) -> PodAnswer:
            try:
                loaded = name in served_names(Endpoint(url))
            except OSError as error:
                return PodAnswer(pod, trouble=f"{pod}: {error}")
            return asked(pod, url, self._identify, name) if loaded else PodAnswer(pod, trouble=f"{pod} lacks {name}")

        return readiness_of(self._section.pool, model.digest, len(pods), of_each(pods, ask))

    def _hold(self, split: Split, unload: bool = False) -> None:
        """Load what each pod lacks, champion first; once all hold all, pods that start later begin with it. Raises
        ValueError with the words of the pods that do not, after all were asked."""
        models = {self._served(each.digest): each.digest for each in (split.champion, split.warm, split.canary) if each}
        known = self._adapters()
        adapters = {name: known[digest] for name, digest in models.items() if digest in known}

        def hold(pod: str, url: str) -> str:
            try:
                base, *loaded = served_names(Endpoint(url))
                for name in (each for each in models if each not in (base, *loaded)):
                    each = adapters.get(name)
                    if each is None or self._served(each.base) != base:
                        over = f"an adapter over {self._served(each.base)}" if each else "no adapter"
                        raise ValueError(
                            f"it holds {base}, and {name} is {over}. Start the pool over a base that it fits "
                            f"({MANIFESTS}), or give the rollout two slots: rollout.traffic: {{kind: http_route}}."
                        )
                    self._location(each.adapter)
                    load_adapter(url, name, self._ref(each.adapter.digest).uri)
                for name in loaded if unload else ():
                    if digest_head(name, self._name) and name not in models:
                        unload_adapter(url, name)
            except (OSError, ValueError) as error:
                return f"{pod}: {error}"
            return ""

        pods = servers(self._client, self._section.namespace, self._section.pool)
        if troubles := list(filter(None, of_each(pods, hold))):
            raise ValueError("; ".join(troubles))
        if pods:
            self._note(adapters)

    def _note(self, adapters: Mapping[str, ServedAdapter]) -> None:
        name, namespace = f"{self._section.pool}-adapters", self._section.namespace
        modules = [f"{served}={self._ref(each.adapter.digest).uri}" for served, each in sorted(adapters.items())]
        data = {BASE: " ".join({self._served(each.base) for each in adapters.values()}), MODULES: " ".join(modules)}
        config = reached(lambda: self._client.get(CONFIG_MAP, namespace, name))
        if config is None:
            raise ValueError(f"There is no ConfigMap {namespace}/{name}. Apply {MANIFESTS}.")
        if not data.items() <= (config.get("data") or {}).items():
            changes = [{"op": "add", "path": f"/data/{key}", "value": value} for key, value in data.items()]
            reached(lambda: self._client.patch(CONFIG_MAP, namespace, name, changes))

    def _not_in_force(self, obj: dict[str, Any]) -> str:
        """Why the picker of the pool does not draw by the object, as far as the API says, or ""."""
        pool, meta = obj["spec"]["poolRef"], obj["metadata"]
        if (pool.get("group"), pool["name"]) != (POOL_GROUP, self._section.pool):
            of = f"{pool.get('group')}/{pool['name']}"
            return f"{self._object.where} is of the pool {of}, not of {POOL_GROUP}/{self._section.pool}"
        for condition in (obj.get("status") or {}).get("conditions") or []:
            if condition["status"] == "False":
                why = f"{condition.get('reason', '')} {condition.get('message', '')}".strip()
                return f"{self._object.where} is not {condition['type']}: {why}"
        for other in reached(lambda: self._client.list(MODEL_REWRITE, self._section.namespace)):
            theirs, same = other["metadata"], other["spec"]["poolRef"] == pool and _matching(other, self._name)
            if same and theirs["name"] != meta["name"] and theirs["creationTimestamp"] <= meta["creationTimestamp"]:
                return f"InferenceModelRewrite {theirs['name']} matches {self._name} too, and the older one is in force"
        return ""

    def _rule(self, obj: dict[str, Any]) -> int:
        """The place of the first rule that matches the model's name: the one that is in force."""
        if not (places := _matching(obj, self._name)):
            raise ValueError(f"No rule of {self._object.where} matches {self._name}. Restore it from {MANIFESTS}.")
        return places[0]

    def _served(self, digest: str) -> str:
        return served_name(self._name, digest) if digest else ""

    def _ref(self, digest: str) -> ModelRef:
        """As the pods see what was exported."""
        return ModelRef(uri=exported_uri(ADAPTERS, self._name, digest), digest=digest)


def _matching(obj: dict[str, Any], name: str) -> list[int]:
    """The places of the rules that name a model."""
    rules = enumerate(obj["spec"].get("rules") or [])
    return [
        i
        for i, rule in rules
        if any((row.get("model") or {}).get("value") == name for row in rule.get("matches") or [])
    ]


def _targets(obj: dict[str, Any], rule: int) -> dict[str, int]:
    """The weights of a rule, by target; one alone has everything."""
    rows: list[dict[str, Any]] = obj["spec"]["rules"][rule].get("targets") or []
    if len(rows) == 1:
        return {str(rows[0]["modelRewrite"]): 100}
    return {str(row["modelRewrite"]): int(row.get("weight") or 0) for row in rows}
