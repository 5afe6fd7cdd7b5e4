"""The retry expression and the exit table are one thing."""

import pytest
import yaml

from pipelines.engine.document import Place
from pipelines.engine.retry import RETRY_EXPRESSION, Retry, parse_retry, retry_strategy
from steps.lib.errors import UserError, is_retryable


def argo(code: int, status: str) -> bool:
    """The expression as Argo evaluates it; the operators used mean the same in Python."""
    text = RETRY_EXPRESSION.replace("asInt(lastRetry.exitCode)", "code").replace("lastRetry.status", "status")
    return eval(text.replace("||", " or ").replace("&&", " and "), {"code": code, "status": status})


def test_the_expression_is_the_exit_table():
    assert [code for code in range(256) if argo(code, "Failed")] == [code for code in range(256) if is_retryable(code)]


def test_argos_own_errors_are_retried_whatever_the_code():
    assert all(argo(code, "Error") for code in (-1, 0, 1, 2, 130))


def test_a_pod_that_left_no_code_is_retried():
    assert argo(-1, "Failed")


def test_what_is_built_can_be_read():
    strategy = yaml.safe_load(yaml.safe_dump(retry_strategy(3, 5)))
    retry = parse_retry(Place("retryStrategy", strategy))
    assert [retry.wait_s(attempt) for attempt in range(3)] == [5, 10, 20]
    assert [retry.again(attempt, exit_code=75, error=False) for attempt in range(4)] == [True, True, True, False]
    assert not retry.again(0, exit_code=2, error=False)
    assert parse_retry(Place("retryStrategy", retry_strategy(1, 0))) == Retry(limit=1)


def test_longest_wait():
    backoff = {"duration": "1m", "factor": 2, "cap": "90s"}
    retry = parse_retry(Place("retryStrategy", retry_strategy(5, 1) | {"backoff": backoff}))
    assert [retry.wait_s(attempt) for attempt in range(3)] == [60, 90, 90]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"expression": "true"}, "retryStrategy.expression: got 'true', allowed is only"),
        ({"retryPolicy": "OnError"}, "retryStrategy.retryPolicy: got 'OnError', allowed is 'Always'"),
        ({"limit": "many"}, "retryStrategy.limit: got 'many'"),
        ({"affinity": {}}, "retryStrategy.affinity"),
        ({"backoff": {"duration": "soon"}}, "retryStrategy.backoff.duration: got 'soon'"),
        ({"backoff": {"duration": "5s", "maxDuration": "1h"}}, "retryStrategy.backoff.maxDuration"),
    ],
)
def test_another_strategy_is_refused(change, said):
    with pytest.raises(UserError, match=said):
        parse_retry(Place("retryStrategy", retry_strategy(2, 5) | change))
