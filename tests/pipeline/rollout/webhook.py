"""A web server on 127.0.0.1 that takes notices, as a chat's incoming webhook does."""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.pipeline.serving.chat_server import ChatServer, HttpRequest, HttpResponse, chat_server


@dataclass
class Webhook:
    """What arrived, in order. `status` is answered."""

    url: str = ""
    status: int = 200
    messages: list[str] = field(default_factory=list)


@contextmanager
def webhook() -> Generator[Webhook]:
    hook = Webhook()

    def take(server: ChatServer, request: HttpRequest, place: int) -> HttpResponse:
        assert set(request.body) == {"text"}
        hook.messages.append(request.body["text"])
        return HttpResponse(hook.status)

    with chat_server(take) as server:
        hook.url = f"{server.url}/chat/completions#secret"
        yield hook
