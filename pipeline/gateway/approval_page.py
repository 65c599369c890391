"""The page of approvals as HTML: what is proposed, on which evidence, and a form without a script."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from typing import NamedTuple

from pipeline.rollout.record import Proposal

STYLE = """
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .2rem 1rem; }
dt { opacity: .7; }
dd { margin: 0; overflow-wrap: anywhere; }
input { font: inherit; width: 100%; padding: .4rem; box-sizing: border-box; }
button { font: inherit; padding: .5rem 1rem; margin-top: .8rem; cursor: pointer; }
"""


class ApprovalForm(NamedTuple):
    """What the page's form sends."""

    rollout: str
    model: str
    """Digest of the candidate."""
    bundle: str
    """Digest of the evidence."""
    token: str
    reason: str


def proposal_page(proposal: Proposal, person: str, token: str, not_now: str) -> str:
    """A candidate, and the form to approve it, or why this person cannot (`not_now`)."""
    version = proposal.version
    weights = ", ".join(f"{proposal.policy.weight_at(stage)}%" for stage in range(len(proposal.policy.weights)))
    facts = {
        "rollout": proposal.rollout,
        "candidate": version.model.digest,
        "version": f"{version.version} of {version.name}, of iteration {version.iteration}",
        "champion": proposal.champion.digest,
        "evidence": proposal.bundle_digest,
        "verdict": proposal.verdict,
        "weights": weights,
        "proposed by": proposal.proposed_by or "nobody on record",
        "you are": person,
    }
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in facts.items())
    reasons = (f"<li>{escape(reason)}</li>" for reason in proposal.reasons)
    figures = ["<h2>What the gate measured</h2><ul>", *reasons, "</ul>"] if proposal.reasons else []
    hidden = {"rollout": proposal.rollout, "model": version.model.digest, "bundle": proposal.bundle_digest}
    last = [f"<p>{escape(not_now)}</p>"] if not_now else _form({**hidden, "token": token})
    return _page(f"Approve a candidate for {version.name}", ["<dl>", *rows, "</dl>", *figures, *last])


def word_page(title: str, text: str) -> str:
    return _page(title, [f"<p>{escape(text)}</p>"])


def _form(hidden: dict[str, str]) -> Iterator[str]:
    yield '<form method="post">'
    for name, value in hidden.items():
        yield f'<input type="hidden" name="{name}" value="{escape(value)}">'
    yield '<label>Reason, for the audit log <input name="reason" required maxlength="500" autocomplete="off"></label>'
    yield "<button>Approve</button></form>"


def _page(title: str, body: Iterable[str]) -> str:
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    lines = ["<!doctype html>", f'<html lang="en"><head>{head}</head><body><h1>{escape(title)}</h1>', *body]
    return "\n".join([*lines, "</body></html>"])
