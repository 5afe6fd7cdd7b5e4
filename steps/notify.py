"""How a run ended -> a message to a webhook, when the site has one.

The URL comes by $TRIPOD_WEBHOOK_URL alone: whoever knows it can post, so it stands in no argument,
log or message. The body is one JSON object; `text` is for chat systems, the rest for programs.
"""

from datetime import timedelta

from steps.contract import Context, Params as BaseParams, Result as BaseResult, Step

URL = "TRIPOD_WEBHOOK_URL"
_TIMEOUT_S = 20.0


class Params(BaseParams):
    """What to tell."""

    run: str
    """The run's id."""
    status: str
    """Succeeded, Failed, Error or Cancelled, as the engine says."""
    pipeline: str = ""
    """train, retrain, ..."""
    model: str = ""
    """The recipe."""


class Result(BaseResult):
    """Whether anybody was told."""

    sent: bool
    """False when no webhook is set."""


step = Step(image="data", timeout=timedelta(minutes=2), cached=False)

EXAMPLE = Params(run="example-1", status="Succeeded", pipeline="train", model="example")


def run(params: Params, ctx: Context) -> Result:
    """Post the message once.

    Raises:
        UserError: the URL is not http(s), or the receiver refuses the message (4xx).
        TemporaryError: the receiver is out of reach or has trouble of its own (5xx).
    """
    import json
    from http.client import HTTPException
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    from steps.lib.errors import TemporaryError, UserError

    url = ctx.env.get(URL, "")
    if not url:
        ctx.say(f"{URL} is not set: nobody to tell")
        return Result(sent=False)
    if not url.startswith(("https://", "http://")):
        raise UserError(f"{URL}: its value (not shown) is no http:// or https:// URL")
    what = " ".join(part for part in (params.pipeline, params.model, params.run) if part)
    body = {"text": f"{what}: {params.status}", **params.model_dump()}
    try:
        request = Request(url, data=json.dumps(body).encode(), headers={"content-type": "application/json"})
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            answer.read()
    except HTTPError as e:
        e.close()
        kind = TemporaryError if e.code >= 500 or e.code == 429 else UserError
        raise kind(f"{URL}: the receiver answered {e.code} {e.reason}") from None  # a traceback would show the URL
    except (OSError, ValueError, HTTPException) as e:
        raise TemporaryError(f"{URL}: the receiver is out of reach ({type(e).__name__})") from None
    ctx.say(f"told the webhook: {body['text']}")
    return Result(sent=True)
