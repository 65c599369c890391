"""Real mistakes, each made in a set of manifests without any, and the rule that has to find it."""

from __future__ import annotations

from tests.k8s.lint.account_mistakes import LAUNCHES, MARKS
from tests.k8s.lint.cases import GONE, find
from tests.k8s.lint.cluster_mistakes import NODE_POOLS, NODES, OPERATORS
from tests.k8s.lint.door_mistakes import DOORS
from tests.k8s.lint.edits import (
    BOX,
    JOB,
    POD,
    Mistake,
    box,
    env,
    job,
    jobset,
    more,
    pod,
    ray,
    reverse,
    script,
    second_route,
    static,
    twice,
    volcano,
    without,
)
from tests.k8s.lint.policy_mistakes import POLICIES
from tests.k8s.lint.refusal_mistakes import REFUSALS

SUBMITTER = "spec.submitterPodTemplate.spec"
IGNORE = [{"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget"}]}]
RESTART = "RestartJobSetAndIgnoreMaxRestarts"

RESTARTS = [
    job("completions 1 of 3 (seed 002)", "job-completions", "spec.completions", 1),
    jobset("completions 1 in a JobSet", "job-completions", f"{JOB}.completions", 1),
    job("a job without ranks (seed 002)", "job-not-indexed", "spec.completionMode", GONE),
    job("restartPolicy OnFailure (seed 002)", "restart-policy", "spec.template.spec.restartPolicy", "OnFailure"),
    pod("no restartPolicy: Always", "restart-policy", "restartPolicy", GONE),
    volcano("restartPolicy Always", "restart-policy", "spec.tasks.0.template.spec.restartPolicy", "Always"),
    job("backoffLimit 0 alone (seed 000)", "eviction-fails-job", "spec.podFailurePolicy", GONE),
    job("Ignore on DisruptionTarget", "eviction-replaces-one", "spec.podFailurePolicy.rules", IGNORE),
    jobset("... in a JobSet", "eviction-replaces-one", f"{JOB}.podFailurePolicy.rules", IGNORE),
    Mistake("the default backoffLimit of 6 (seed 002)", "eviction-replaces-one",
            without("spec.podFailurePolicy", "spec.backoffLimit"), "job"),
    jobset("no failure policy", "jobset-preemption", "spec.failurePolicy", GONE),
    jobset("no rules: counted", "jobset-preemption", "spec.failurePolicy.rules", GONE),
    jobset("RestartJobSet: counted", "jobset-preemption", "spec.failurePolicy.rules.1.action", "RestartJobSet"),
    jobset("no podFailurePolicy", "jobset-preemption", f"{JOB}.podFailurePolicy", GONE),
    jobset("a rule for another job", "jobset-preemption", "spec.failurePolicy.rules.1.targetReplicatedJobs", ["ps"]),
    jobset("143 is a crash", "jobset-exit-143", f"{JOB}.podFailurePolicy.rules.2", GONE),
    jobset("the container has another name", "jobset-exit-143", f"{BOX}.name", "nemo"),
    jobset("64 is retried", "jobset-exit-64", "spec.failurePolicy.rules.0", GONE),
    Mistake("64 after the rule of pre-emption", "jobset-exit-64", reverse("spec.failurePolicy.rules")),
    jobset("64 is not in the message", "jobset-exit-64", f"{JOB}.podFailurePolicy.rules.0", GONE),
    jobset("a pattern that is none", "jobset-exit-64",
           "spec.failurePolicy.rules.0.onJobFailureMessagePatterns", ["*64"]),
    job("64 is tried six times", "job-exit-64", "spec", {"parallelism": 1, "template": {"spec": {"containers": [
        {"name": "trainer", "resources": {"limits": {"nvidia.com/gpu": 1}}}]}}}),
    jobset("a crash is not counted", "jobset-crash", "spec.failurePolicy.rules",
           [{"name": "all", "action": RESTART}]),
    jobset("a crash replaces one pod", "jobset-crash", f"{JOB}.backoffLimit", 3),
    job("no successPolicy", "success-policy", "spec.successPolicy", GONE),
    script("a trap that exits 0", "exits-0-when-preempted", "trap 'save; exit 0' TERM\npython train.py"),
    script("a trap in double quotes", "exits-0-when-preempted", 'trap "save && exit 0" SIGTERM\nexec python train.py'),
    script("|| true", "exits-0-when-preempted", "python -m train --config /c || true"),
    script("exit 0 at the end", "exits-0-when-preempted", "python train.py\necho done\nexit 0\n"),
    box("a preStop hook that kills", "exits-0-when-preempted", "lifecycle.preStop.exec.command",
        ["sh", "-c", "pkill -9 python"]),
    pod("no grace (seeds 000, 002)", "no-grace", "terminationGracePeriodSeconds", GONE),
    pod("ten minutes of grace", "grace-over-notice", "terminationGracePeriodSeconds", 600),
    pod("100 s on a spot node of GKE", "grace-over-notice", "nodeSelector", {"cloud.google.com/gke-spot": "true"}),
    ray("|| true after the entrypoint", "exits-0-when-preempted", "spec.entrypoint", "python -m train /c || true"),
    jobset("no deadline", "no-deadline", f"{JOB}.activeDeadlineSeconds", GONE),
    jobset("no TTL", "no-ttl", "spec.ttlSecondsAfterFinished", GONE),
    jobset("do-not-disrupt on spot", "do-not-disrupt",
           f"{JOB}.template.metadata.annotations",
           {"karpenter.sh/do-not-disrupt": "true"}),
    static("PodDisruptionBudget", "maxUnavailable 0", "budget-blocks-drain", "spec.maxUnavailable", 0),
    static("PodDisruptionBudget", "minAvailable 100%", "budget-blocks-drain", "spec",
           {"minAvailable": "100%", "selector": {"matchLabels": {"app": "champion"}}}),
    more("minAvailable of all pods of the namespace", "budget-blocks-drain", """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: gang, namespace: preference-tuning}
spec: {minAvailable: 3, selector: {}}
"""),
    more("minAvailable of a whole gang", "budget-blocks-drain", """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: gang, namespace: preference-tuning}
spec: {minAvailable: 3, selector: {matchLabels: {app.kubernetes.io/component: trainer}}}
"""),
]  # fmt: skip

RESOURCES = [
    box("7 of 8 GPUs requested", "device-requests", 'resources.requests."nvidia.com/gpu"', "7"),
    box("256 of 384 Gi requested (seed 000)", "not-guaranteed", "resources.requests.memory", "256Gi"),
    box("no cpu (seed 002)", "not-guaranteed", "resources", {"limits": {"nvidia.com/gpu": 8, "memory": "1600Gi"}}),
    box("2 TiB of a p5en", "over-node", "resources.limits.memory", "2Ti"),
    box("16 GPUs of 8", "over-node", 'resources.limits."nvidia.com/gpu"', 16),
    box("192 of 191.45 cores", "over-node", "resources.limits.cpu", "192"),
    box("no EFA (seed 002)", "efa-missing", "resources", {"limits": {"nvidia.com/gpu": 8, "memory": "1600Gi"}}),
    box("4 EFA of 16", "efa-missing", 'resources.limits."vpc.amazonaws.com/efa"', 4),
    pod("no /dev/shm (seed 002)", "no-shm", "volumes.1", GONE),
    pod("/dev/shm on disk", "no-shm", "volumes.1", {"name": "shm", "emptyDir": {}}),
    pod("/dev/shm without a size (seed 003: /tmp/ray)", "memory-disk", "volumes.1.emptyDir", {"medium": "Memory"}),
    pod("/dev/shm as large as the memory", "memory-disk", "volumes.1.emptyDir.sizeLimit", "2Ti"),
    pod("checkpoints on the node's disk", "no-checkpoint-volume", "volumes.0", {"name": "data", "emptyDir": {}}),
    static("PersistentVolumeClaim", "one node's claim", "claim-not-shared", "spec.accessModes", ["ReadWriteOnce"]),
    pod("a claim that is not there (seed 002)", "reference-missing",
        "volumes.0.persistentVolumeClaim.claimName", "training-checkpoints"),
    pod("an account that is not there", "reference-missing", "serviceAccountName", "nemo"),
    volcano("same container spec as above (seed 002)", "no-containers", "spec.tasks.0.template.spec", None),
]  # fmt: skip

SECURITY = [
    pod("hostNetwork (seed 000)", "host-namespaces", "hostNetwork", True),
    pod("hostIPC for shared memory", "host-namespaces", "hostIPC", True),
    pod("hostPath (seed 003)", "host-path", "volumes.1", {"name": "shm", "hostPath": {"path": "/dev/shm"}}),
    box("privileged (seeds 000, 003)", "privileged", "securityContext.privileged", True),
    box("privilege escalation", "privileged", "securityContext.allowPrivilegeEscalation", True),
    box("IPC_LOCK (seed 000)", "capabilities", "securityContext.capabilities.add", ["IPC_LOCK", "SYS_RESOURCE"]),
    pod("no user (seeds)", "root", "securityContext", GONE),
    pod("user 0", "root", "securityContext.runAsUser", 0),
    ray("the submitter as root", "root", "spec.submitterPodTemplate.spec.securityContext", GONE),
    ray("a token in the submitter", "api-token", f"{SUBMITTER}.automountServiceAccountToken", True),
    ray("the submitter by tag", "image-not-pinned", f"{SUBMITTER}.containers.0.image", "rayproject/ray:2.46.0"),
    ray("a token in Ray's environment", "secret-in-manifest", "spec.runtimeEnvYAML", "env_vars: {HF_TOKEN: abcdef}"),
    ray("a token in the entrypoint", "secret-in-manifest", "spec.entrypoint", "python train.py --hub-token=abcdefgh"),
    pod("a token in the trainer", "api-token", "automountServiceAccountToken", True),
    Mistake("a token by default (seeds)", "api-token",
            without(f"{POD}.automountServiceAccountToken", f"{POD}.serviceAccountName")),
    static("Role", "* verbs", "wildcard-rbac", "rules.0.verbs", ["*"]),
    static("RoleBinding", "cluster-admin", "wildcard-rbac", "roleRef.name", "cluster-admin"),
    env("a token in the environment (seed 003)", "secret-in-manifest", "HF_TOKEN", "abcdef"),
    env("a password in an address", "secret-in-manifest", "DB", "postgresql://me:hunter22@db/mlflow"),
    env("a key under another name", "secret-in-manifest", "WHO", "AKIA" + "ABCDEFGHIJKLMNOP"),
    script("a token in an argument", "secret-in-manifest", "exec train --hub-token=abcdefgh"),
    more("a Secret with its value", "secret-in-manifest",
         "{apiVersion: v1, kind: Secret, metadata: {name: hub, namespace: a}, stringData: {token: x}}"),
    static("ConfigMap", "a password in a ConfigMap", "secret-in-manifest", "data.database", "mysql://root:secret@db/x"),
    box("an image by tag (seed 002)", "image-not-pinned", "image", "nvcr.io/nvidia/nemo:26.02"),
    box("an image by latest (seed 000)", "image-not-pinned", "image", "nemo-rl:latest"),
    static("Deployment", "latest", "image-floating", f"{NODES}.containers.0.image", "localhost:5000/server:latest"),
    static("Deployment", "no tag", "image-floating", f"{NODES}.containers.0.image", "localhost:5000/server"),
    box("the placeholder's image", "image-placeholder", "image", "trainer@sha256:" + "0" * 64),
]  # fmt: skip

SCRIPTS = [
    env("16 channels (seed 002)", "nccl-tuning", "NCCL_MIN_NCHANNELS", "16"),
    env("a buffer's size", "nccl-tuning", "NCCL_BUFFSIZE", "8388608"),
    env("RDMAV_FORK_SAFE (seed 000)", "fork-safe", "RDMAV_FORK_SAFE", "1"),
    env("a guess at interfaces (seed 000)", "nccl-interface", "NCCL_SOCKET_IFNAME", "^lo,docker,veth,eni"),
    env("Gloo on eth0 (seed 003)", "nccl-interface", "GLOO_SOCKET_IFNAME", "eth0"),
    env("two hours for a dead peer (seed 000)", "hang-timeout", "TORCH_NCCL_HEARTBEAT_TIMEOUT_SEC", "7200"),
    env("a name twice", "duplicate-env", "NCCL_DEBUG", "INFO"),
    script("apt-get (seed 003)", "installs-at-start", "apt-get update\napt-get install -y sudo\nexec ray start"),
    script("pip install (seed 003)", "installs-at-start", "/usr/bin/python -m pip install uv && exec python x.py"),
    script("a clone", "installs-at-start", "git clone https://github.com/NVIDIA-NeMo/RL && cd RL"),
    ray("pip install in the entrypoint", "installs-at-start", "spec.entrypoint", "pip install trl && python x.py"),
    ray("pip in Ray's environment", "installs-at-start", "spec.runtimeEnvYAML", "pip: [math-verify]"),
    ray("a buffer's size in Ray's environment", "nccl-tuning", "spec.runtimeEnvYAML",
        "env_vars: {NCCL_BUFFSIZE: 8388608}"),
    script("the master's address in a file (seed 000)", "master-ip-file",
           'MY_IP=$(hostname -I)\nMASTER_FILE="/shared/.grpo-master-ip"\necho "$MY_IP" > "$MASTER_FILE"'),
    script("/etc/hosts (seed 000)", "master-ip-file", 'echo "$MY_IP $(hostname)" >> /etc/hosts'),
    script("a shell around the trainer (seed 000)", "signal-swallowed", "set -e\nnvidia-smi\npython run.py --x\n"),
    script("a shell and a last word", "signal-swallowed", "torchrun train.py; ray stop"),
    box("one directory for all runs (seed 002)", "shared-run-directory", "args",
        ["--output-path=/checkpoints/grpo-run-001"]),
    script("Hydra's override (seed 000)", "shared-run-directory",
           "exec python run_grpo.py \\\n  checkpointing.checkpoint_dir=/shared/grpo-checkpoints"),
    box("data under a fixed name (seed 002)", "shared-run-directory", "args",
        ["--data-path=s3://training-data-lake/labeled-dataset/"]),
    box("no fence", "unfenced", "command", ["python", "-m", "pipeline.training", "/checkpoints/plan.json"]),
    ray("a mode that KubeRay does not know", "ray-submission-mode", "spec.submissionMode", "K8SJobMode"),
    ray("an entrypoint without a fence", "unfenced", "spec.entrypoint", "python -m pipeline.training /c/plan.json"),
    ray("one directory in the entrypoint", "shared-run-directory", "spec.entrypoint",
        "python run_grpo.py checkpointing.checkpoint_dir=/data/checkpoints"),
]  # fmt: skip

NAMES = [
    jobset("a line break in a name", "name-invalid", "metadata.name", "run\n---\nkind: Pod"),
    jobset("dashes alone", "name-invalid", "metadata.name", "---"),
    jobset("capitals", "name-invalid", "metadata.name", "GRPO_run"),
    jobset("300 characters", "name-invalid", "metadata.name", "a" * 300),
    jobset("a namespace that is none", "name-invalid", "metadata.namespace", "a.b"),
    jobset("a namespace of 64 characters", "name-invalid", "metadata.namespace", "a" * 64),
    pod("an account that can have no such name", "reference-invalid", "serviceAccountName", "Nemo_RL"),
    pod("a claim that can have no such name", "reference-invalid",
        "volumes.0.persistentVolumeClaim.claimName", "a" * 254),
    box("white space in an image", "reference-invalid", "image", f"trainer @sha256:{'5' * 64}"),
    env("a variable that is none", "reference-invalid", "MAX TOKENS", "512"),
    ray("a variable that begins with a digit", "reference-invalid", f"{SUBMITTER}.containers.0.env",
        [{"name": "9LIVES", "value": "1"}]),
    jobset("a name without room for numbers", "pod-name-too-long", "metadata.name", "a" * 60),
    volcano("a name without room for a task", "pod-name-too-long", "metadata.name", "a" * 60),
    ray("a name without room for the head", "pod-name-too-long", "metadata.name", "a" * 60),
    job("a name without room for an index", "pod-name-too-long", "metadata.name", "a" * 60),
    jobset("a line break in a label", "label-invalid", "metadata.labels.iteration", "2026\nx: y"),
    jobset("a label of 64 characters", "label-invalid", f"{JOB}.template.metadata.labels.iteration", "a" * 64),
    jobset("a key with two slashes", "label-invalid", "metadata.labels.a/b/c", "x"),
    jobset("nobody's pods (seeds)", "no-iteration-label", f"{JOB}.template.metadata.labels", {"app": "grpo"}),
    jobset("nobody's gang (seeds)", "no-iteration-label", "metadata.labels", {"app": "grpo"}),
    jobset("namespace default (seed 000)", "no-namespace", "metadata.namespace", "default"),
    Mistake("a role twice", "duplicate-object", twice),
]  # fmt: skip

ROUTES = [
    job("a Service with an address", "service-not-headless", "spec.clusterIP", GONE, kind="Service"),
    job("names for ready pods alone", "hides-starting-pods", "spec.publishNotReadyAddresses", False, kind="Service"),
    jobset("... in a JobSet", "hides-starting-pods", "spec.network.publishNotReadyAddresses", False),
    job("no subdomain (seed 000)", "no-rendezvous", "spec.template.spec.subdomain", GONE),
    Mistake("no Service", "no-rendezvous", lambda o: o.remove(find(o, "Service")), "job"),
    Mistake("a rollback by a second route", "route-conflict", second_route),
    static("HTTPRoute", "weights 95 and 50", "route-weights", "spec.rules.0.backendRefs.1.weight", 50),
    static("HTTPRoute", "no weights at all", "route-without-traffic", "spec.rules.0.backendRefs",
           [{"name": "champion", "port": 8000, "weight": 0}]),
    static("HTTPRoute", "no port", "route-port", "spec.rules.0.backendRefs.1.port", GONE),
    static("HTTPRoute", "a backend that is not there", "route-backend-missing",
           "spec.rules.0.backendRefs.1.name", "candidate"),
]  # fmt: skip

MISTAKES = [
    *REFUSALS,
    *POLICIES,
    *RESTARTS,
    *OPERATORS,
    *NODE_POOLS,
    *RESOURCES,
    *SECURITY,
    *MARKS,
    *DOORS,
    *LAUNCHES,
    *SCRIPTS,
    *NAMES,
    *ROUTES,
]
