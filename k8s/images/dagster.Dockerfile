# syntax=docker/dockerfile:1
# Dagster's code location, daemon and webserver, the pods of its runs, MLflow, and what fetches weights for the servers.
#   docker build -f k8s/images/dagster.Dockerfile --build-arg REVISION=$(git rev-parse HEAD) -t REGISTRY/dagster .
#
# No `.env`: the dagster commands would load it, and its DAGSTER_HOME overrides the pod's. No dagster.yaml either: the
# instance of a cluster is a ConfigMap (k8s/manifests/bases/platform). No ENTRYPOINT: the run launcher gives a pod
# arguments without a command.
FROM python:3.11.16-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84 AS builder

RUN python -m venv /opt/venv
ENV PATH=/opt/venv/bin:${PATH}

# torch comes first and alone. Name PyTorch's index of builds for CPUs (--build-arg TORCH_INDEX=...), or 3 GB of CUDA come
# along, which nothing here needs.
ARG TORCH_INDEX=
COPY constraints/cpu.txt /build/
RUN pip install --no-cache-dir -c /build/cpu.txt ${TORCH_INDEX:+--index-url ${TORCH_INDEX}} torch

# An editable install, because recipes lie beside the code, of packages that are still empty: a change of the code does
# not install the requirements again.
WORKDIR /app
COPY pyproject.toml README.md LICENSE /app/
RUN for package in pipeline evals k8s assets jobs; do mkdir "$package" && touch "$package/__init__.py"; done \
    && pip install --no-cache-dir -c /build/cpu.txt -e '.[train,k8s,platform]'

FROM python:3.11.16-slim-bookworm@sha256:528257d48c1da0dcecc2e725d1ae34498d60c965f1241e39cd6a85a8859bdf84

COPY --from=builder /opt/venv /opt/venv
WORKDIR /app
COPY pyproject.toml LICENSE /app/
COPY pipeline /app/pipeline
COPY evals /app/evals
COPY k8s /app/k8s
COPY assets /app/assets
COPY jobs /app/jobs
RUN mkdir -p /opt/dagster/dagster_home

# Dagster's Helm chart starts the web server by this name: here it is the one that refuses pages of other sites.
RUN printf '#!/bin/sh\nexec python -m jobs.webserver "$@"\n' > /opt/venv/bin/dagster-webserver

ARG REVISION=unknown
ENV PATH=/opt/venv/bin:${PATH} \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/tmp \
    HF_HUB_OFFLINE=1 \
    DAGSTER_DISABLE_TELEMETRY=yes \
    MLFLOW_DISABLE_TELEMETRY=true \
    PREFERENCE_TUNING_CODE_VERSION=${REVISION}
LABEL org.opencontainers.image.title="preference-tuning dagster" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}"

USER 1000:1000
STOPSIGNAL SIGTERM
CMD ["dagster", "api", "grpc", "--host", "0.0.0.0", "--port", "4000", "--module-name", "jobs.definitions"]
