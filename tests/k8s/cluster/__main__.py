"""`python -m tests.k8s.cluster KUBECONFIG`: the tests' cluster as a process of its own, until it gets SIGTERM.

So that the suite can be run against "the cluster that KUBECONFIG names" where there is no real one. Like a real one it
is not empty: it has machines with GPUs, which are free and which any pod may take, and a pod of somebody else.
"""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from .api import Api
from .controllers import controllers
from .gangs import pod_template
from .pod_driver import PodDriver
from .server import api_server

GPUS = {"cpu": "192", "memory": "1900Gi", "nvidia.com/gpu": "8", "vpc.amazonaws.com/efa": "16"}
THEIRS = "somebody-else"
TYPE = {"node.kubernetes.io/instance-type": "p5en.48xlarge", "karpenter.sh/capacity-type": "spot"}


def main(kubeconfig: Path) -> None:
    """Serves; writes `kubeconfig` once it does."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    with api_server() as server, controllers(server.storage):
        driver = PodDriver(Api(server.url, server.token))
        driver.api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": THEIRS}})
        for number in range(2):
            driver.node(f"{THEIRS}-{number}", GPUS, TYPE)
        metadata = {"name": "service", "namespace": THEIRS}
        pod = driver.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata} | pod_template())
        driver.run(pod, f"{THEIRS}-0")
        partial = kubeconfig.with_suffix(".partial")
        server.kubeconfig(partial).rename(kubeconfig)
        signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
