"""Mistakes with who may have the keys of the marks of users, and who may launch."""

from __future__ import annotations

from tests.k8s.lint.edits import box, more, pod

CODE = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: dagster-code, namespace: preference-tuning}}
spec:
  selector: {{matchLabels: {{app: code}}}}
  template:
    metadata: {{labels: {{app: code}}}}
    spec:
      serviceAccountName: code-location
      automountServiceAccountToken: false
      securityContext: {{runAsNonRoot: true, runAsUser: 1000}}
      containers:
        - name: code
          image: example.com/dagster:1
          command: [dagster, api, grpc, --port, "4000"]
          resources: {{requests: {{cpu: 1, memory: 1Gi}}, limits: {{memory: 1Gi}}}}
          envFrom: [{source}]
"""
INSTANCE = """
apiVersion: v1
kind: ConfigMap
metadata: {name: dagster-instance, namespace: preference-tuning-platform}
data:
  dagster.yaml: |
    run_launcher: {module: dagster_k8s.launcher, class: K8sRunLauncher, config: {env_secrets: [dagster-postgresql]}}
"""
OTHERS = """
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: launcher-rayjob, namespace: preference-tuning}
rules: [{apiGroups: [ray.io], resources: [rayjobs], verbs: [get, create, patch, delete]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: launcher-rayjob, namespace: preference-tuning}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: launcher-rayjob}
subjects: [{kind: ServiceAccount, name: launcher, namespace: preference-tuning}]
"""
KEY = {"secretKeyRef": {"name": "endpoints", "key": "PREFERENCE_TUNING_MARK_KEYS"}}
LAUNCHES = [
    more(f"another backend's component ({backend})", "no-right-to-launch", OTHERS, backend)
    for backend in ("jobset", "volcano")
]
MARKS = [
    more("a code location without the keys", "mark-keys", CODE.format(source="{secretRef: {name: endpoints}}")),
    more("keys that may be missing", "mark-keys", CODE.format(source="{secretRef: {name: mark-keys, optional: true}}")),
    more("runs without the keys", "mark-keys", INSTANCE),
    box("the keys in a trainer", "mark-keys-elsewhere", "envFrom", [{"secretRef": {"name": "mark-keys"}}]),
    box("... one by one", "mark-keys-elsewhere", "env", [{"name": "PREFERENCE_TUNING_MARK_KEYS", "valueFrom": KEY}]),
    pod("... as files", "mark-keys-elsewhere", "volumes", [{"name": "k", "secret": {"secretName": "mark-keys"}}]),
]
