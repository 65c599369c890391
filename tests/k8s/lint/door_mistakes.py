"""Mistakes with who reaches Dagster's code server."""

from __future__ import annotations

from tests.k8s.lint.account_mistakes import CODE
from tests.k8s.lint.edits import Mistake, more

OPEN = CODE.format(source="{secretRef: {name: mark-keys}}").replace("grpc, ", 'grpc, --host, "0.0.0.0", ')
WEBSERVER = "{namespaceSelector: {matchLabels: {a: b}}, podSelector: {matchLabels: {app: webserver}}}"
PORTS = "ports: [{protocol: TCP, port: 4000}]"


def door(what: str, ingress: str, selected: str = "{matchLabels: {app: code}}", types: str = "[Ingress]") -> Mistake:
    policy = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\n"
    policy += "metadata: {name: code, namespace: preference-tuning}\n"
    spec = f"spec: {{podSelector: {selected}, policyTypes: {types}, ingress: [{ingress}]}}\n"
    return more(what, "code-server-open", f"{OPEN}---\n{policy}{spec}")


DOORS: list[Mistake] = [
    more("a code server without a policy", "code-server-open", OPEN),
    door("a policy for other pods", f"{{from: [{WEBSERVER}], {PORTS}}}", "{matchLabels: {app: mlflow}}"),
    door("a policy for what goes out", "", types="[Egress]"),
    door("everybody", f"{{{PORTS}}}"),
    door("a whole namespace", f"{{from: [{{namespaceSelector: {{matchLabels: {{a: b}}}}}}], {PORTS}}}"),
    door("every pod of its namespace", f"{{from: [{{podSelector: {{}}}}], {PORTS}}}"),
    door("addresses", f"{{from: [{{ipBlock: {{cidr: 10.0.0.0/8}}}}], {PORTS}}}"),
    door("every port", f"{{from: [{WEBSERVER}]}}"),
]
