"""What moto's SageMaker lacks: an endpoint that takes another configuration, and keeps its weights meanwhile."""

from __future__ import annotations

from typing import Any

import pytest


def taking_configurations(patch: pytest.MonkeyPatch, status: str = "InService") -> list[str]:
    """The configurations that endpoints are updated to from now on. `status`: of an endpoint after that."""
    from moto.core.responses import ActionResult
    from moto.sagemaker.responses import SageMakerResponse

    taken: list[str] = []

    def update_endpoint(response: Any) -> ActionResult:
        endpoint = response.sagemaker_backend.endpoints[response._get_param("EndpointName")]
        assert response._get_param("RetainAllVariantProperties") is True
        taken.append(response._get_param("EndpointConfigName"))
        endpoint.endpoint_config_name, endpoint.endpoint_status = taken[-1], status
        return ActionResult({"EndpointArn": endpoint.arn})

    patch.setattr(SageMakerResponse, "update_endpoint", update_endpoint, raising=False)
    return taken
