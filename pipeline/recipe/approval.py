"""Recipe section `rollout.approval`: who may let a candidate into the traffic, and how they are known."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from pipeline.locations import Uri
from pipeline.section import Added, Line, Section

HeaderName = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=60)]
"""In lower case; without an underscore, which some proxies take for a hyphen."""
Origin = Annotated[str, Field(pattern=r"^https?://[a-z0-9.-]+(:[0-9]{1,5})?$")]


class ApprovalProxy(Section):
    """A proxy that authenticates people before the gateway's page of approvals, `/-/approval`, and names them in a
    header. It is known by a secret that it sends along, the value of APPROVAL_PROXY_SECRET."""

    approvers: Annotated[tuple[Annotated[Line, Field(min_length=1)], ...], Field(min_length=1)]
    """Who may approve, each written exactly as the proxy names them."""
    origin: Origin
    """Where browsers find the page, such as https://models.example.org: no form of another origin is taken."""
    user_header: HeaderName = "x-forwarded-email"
    """In which the proxy names the person. It has to replace what a caller sends under that name."""
    secret_header: HeaderName = "x-approval-secret"
    """In which the proxy sends the secret."""

    @model_validator(mode="after")
    def _two_headers(self) -> ApprovalProxy:
        if self.user_header == self.secret_header:
            raise ValueError(f"user_header and secret_header are both {self.user_header}. Name two.")
        return self


class Approval(Section):
    """A person's word, without which no candidate gets traffic: a signature, or a proxy's."""

    allowed_signers: Annotated[Uri, Added] = ""
    """File of the people who may sign and their public keys, in the format of `ssh-keygen -Y verify`; "": nobody
    signs."""
    proxy: Annotated[ApprovalProxy | None, Added] = None
    """Who else may approve, on the gateway's page; null: nobody."""

    @model_validator(mode="after")
    def _somebody_may(self) -> Approval:
        if not self.allowed_signers and self.proxy is None:
            raise ValueError(
                "rollout.approval names nobody who may approve. Set allowed_signers to a file of names and keys, or "
                "proxy; or leave approval out."
            )
        return self
