"""The smoke test: asking as users do; and the note in the store that it passed."""

import json
import time
from typing import Any

from steps.contract import Context
from steps.deploy import Params
from steps.deploy.check import Model
from steps.lib import registry
from steps.lib.completions import Client
from steps.lib.digest import digest_of
from steps.lib.errors import RejectedError
from steps.lib.store import NotFoundError


def ask(client: Client, params: Params, ctx: Context, model: Model) -> str:
    """Returns the completion of the prompt.

    Raises:
        RejectedError: the name is not served, the answer is empty, or the stop token does not stop.
        TemporaryError: no answer.
    """
    if params.name not in (names := client.models()):
        raise RejectedError(f"smoke test: {client.base} serves {', '.join(names)}, not {params.name}")
    completion = client.complete(params.name, params.prompt, max_tokens=params.max_tokens)
    if not completion.text:
        raise RejectedError(
            f"smoke test: the completion of {params.prompt!r} is empty; look at the stop tokens and at training"
        )
    end = client.complete(params.name, params.prompt, max_tokens=2, only_token=model.eos_id)
    if (end.finish_reason, end.num_tokens) != ("stop", 1):
        raise RejectedError(f"smoke test: stop token {model.eos_id} does not stop the answer ({end.finish_reason})")
    if not model.has_chat_template:
        ctx.say(f"{params.name}: no chat template, so /v1/completions answers and /v1/chat/completions does not")
    elif not client.chat(params.name, params.prompt, max_tokens=params.max_tokens).text:
        raise RejectedError(f"smoke test: the chat answer to {params.prompt!r} is empty; look at the chat template")
    return completion.text


class Note:
    """Says in the store that a smoke test passed: same digest, same server, same question.

    Args:
        server: what decides how it is served.
    """

    def __init__(self, params: Params, ctx: Context, model: Model, server: dict[str, Any]):
        self._asked = {"prompt": params.prompt, "max_tokens": params.max_tokens, **server}
        name, _ = registry.split(params.model)
        self._key = f"models/{name}/smoke/{digest_of({'digest': model.digest, **self._asked})}.json"
        self._store = ctx.store

    def read(self) -> tuple[str, str] | None:
        """When it passed, and the completion; None when it did not, or the note is damaged: asked again, it is written anew."""
        try:
            data = self._store.get(self._key)
        except NotFoundError:
            return None
        try:
            note = json.loads(data)
            return str(note["passed"]), str(note["completion"])
        except (ValueError, KeyError, TypeError):
            return None

    def write(self, completion: str) -> None:
        """It has passed, now."""
        passed = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
        self._store.put(
            self._key, json.dumps({"passed": passed, "completion": completion, **self._asked}, indent=1).encode()
        )
