# syntax=docker/dockerfile:1
# What the pods of a trainer (of a RayJob: nemo-rl.Dockerfile) and of an evaluation run, and what the servers of
# champion, canary and judge run. /opt/venv has the trainer with the vLLM that TRL generates with, /opt/vllm a newer one
# that serves, to evaluations too.
#   docker build -f k8s/images/trainer.Dockerfile --build-arg REVISION=$(git rev-parse HEAD) -t REGISTRY/trainer .
# A recipe names it by digest (compute.kubernetes.image), as `docker push` prints it.
#
# BASE needs a CUDA 13.0 toolkit (DeepSpeed and FlashInfer compile kernels at run time) and Python 3.12. The default has
# no Elastic Fabric Adapter: between nodes NCCL would speak TCP. On instances with EFA give a base that adds
# libfabric and aws-ofi-nccl to it (AWS's EFA installer, or one of its Deep Learning base images), with the plugin on
# LD_LIBRARY_PATH, and name it by digest too: --build-arg BASE=REGISTRY/cuda-efa@sha256:...
# On GKE, GPUDirect RDMA likewise needs Google's gIB plugin in BASE (its installer leaves it on the node, from where a
# gang's pods don't mount it), and NCCL's environment, as its set_nccl_env.sh has it, in compute.kubernetes.env.
# A run shows which was taken: NCCL_DEBUG=INFO prints "NET/OFI", "NET/gIB" or "NET/Socket".
ARG BASE=nvidia/cuda:13.0.2-devel-ubuntu24.04@sha256:5dc1bca23d05bd37b011be68ec470c03b403a5da07ec3a86e41af9470e9d0cc6
FROM ${BASE}

# Triton compiles its launchers against Python.h.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends ca-certificates python3.12 python3.12-dev python3.12-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3.12 -m venv /opt/venv
ENV PATH=/opt/venv/bin:${PATH}

# torch comes first and alone: anything else that wants it must find it there, not fetch another build.
COPY constraints/gpu.txt k8s/images/trainer.txt /build/
RUN pip install --no-cache-dir -c /build/gpu.txt torch
RUN pip install --no-cache-dir -c /build/gpu.txt -r /build/trainer.txt

COPY constraints/serving.txt /build/
RUN python3.12 -m venv /opt/vllm \
    && /opt/vllm/bin/pip install --no-cache-dir -c /build/serving.txt torch \
    && /opt/vllm/bin/pip install --no-cache-dir -c /build/serving.txt vllm

# Not installed but found: the project's own requirements include Dagster, and no trainer or evaluation needs it.
COPY pipeline /app/pipeline
COPY evals /app/evals
ENV PYTHONPATH=/app \
    VLLM_PYTHON=/opt/vllm/bin/python \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    HF_HUB_OFFLINE=1 \
    HF_DATASETS_OFFLINE=1 \
    VLLM_NO_USAGE_STATS=1

ARG REVISION=unknown
LABEL org.opencontainers.image.title="preference-tuning trainer" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"

# The number that owns the data root on the shared volume: the same in both images and in k8s/pod.py.
USER 1000:1000
WORKDIR /tmp
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m", "pipeline.training"]
