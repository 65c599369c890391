# syntax=docker/dockerfile:1
# What the pods of a RayJob run: NVIDIA's container of NeMo RL with the trainer beside it. For recipes with backend
# rayjob (spot_h200_grpo, eks_workshop, gke_deepscaler).
#   docker build -f k8s/images/nemo-rl.Dockerfile --build-arg BASE=nvcr.io/nvidia/nemo-rl@sha256:... \
#     --build-arg REVISION=$(git rev-parse HEAD) -t REGISTRY/nemo-rl .
#
# BASE has no default, because the release is yours to choose. Its checkout is in /opt/nemo-rl, Ray in an environment of
# uv's, and it is built on Ubuntu 24.04. For EFA and GKE's gIB the same holds as in trainer.Dockerfile.
ARG BASE
FROM ${BASE}
ARG BASE
USER root
RUN case "${BASE}" in *@sha256:*) ;; *) echo "BASE is ${BASE}: name it by digest." >&2; exit 1 ;; esac

# An environment of the trainer's own: NeMo RL's is locked by uv, and our versions would break it, or its ours.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3.12 python3.12-venv \
    && rm -rf /var/lib/apt/lists/* \
    && python3.12 -m venv /opt/venv

# torch only merges and exports here: name PyTorch's index of builds for CPUs, or 3 GB of CUDA come along a second time.
ARG TORCH_INDEX=
COPY constraints/gpu.txt k8s/images/nemo-rl.txt /build/
ENV PATH=/opt/venv/bin:${PATH}
RUN pip install --no-cache-dir -c /build/gpu.txt ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} torch
RUN pip install --no-cache-dir -c /build/gpu.txt -r /build/nemo-rl.txt

# `python` is ours and `ray` is NeMo RL's, which `uv run` starts in its own environment whatever the PATH. uv has its
# Python and its packages under /root, and wants a cache that it can write.
COPY pipeline /app/pipeline
ENV PYTHONPATH=/app \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    UV_CACHE_DIR=/tmp/uv \
    UV_NO_SYNC=1 \
    UV_OFFLINE=1 \
    HF_HUB_OFFLINE=1 \
    HF_DATASETS_OFFLINE=1 \
    VLLM_NO_USAGE_STATS=1 \
    RAY_USAGE_STATS_ENABLED=0

# Some releases keep /root closed. What user 1000 cannot start fails here, not on eight GPUs; so does another release
# than those that pipeline/training/nemo knows.
RUN chmod a+x /root \
    && cd /opt/nemo-rl \
    && setpriv --reuid=1000 --regid=1000 --clear-groups sh -ec \
    'python -m pipeline.training.nemo.limits; uv run python -m pipeline.training.nemo.start --check; ray --version; \
    python -m pipeline.training --help'

ARG REVISION=unknown
LABEL org.opencontainers.image.title="preference-tuning nemo-rl" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"

# No ENTRYPOINT of ours, and none of the base's: KubeRay gives the pods a command, and the RayJob its entrypoint.
ENTRYPOINT []
USER 1000:1000
WORKDIR /tmp
STOPSIGNAL SIGTERM
