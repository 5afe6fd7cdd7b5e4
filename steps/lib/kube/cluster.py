"""One API server: what can be done with its objects."""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from types import TracebackType
from typing import TYPE_CHECKING, Self

from steps.lib.kube.kinds import ACCESS_REVIEW, POD, SERVICE, Kind
from steps.lib.kube.wire import ExistsError, Object, RefusedError, Wire

if TYPE_CHECKING:
    from kubernetes.client import Configuration

SPEC = "tripod/spec"
"""Annotation with a digest of what an object was made from: two with the same one are the same."""

_FIELD_MANAGER = "tripod"
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_NOT_STARTED = ("waiting to start", "is not available", "does not have a host assigned")
"""What a kubelet, or the API server for it, says of the log of a container that has none yet."""


class Cluster:
    """One API server.

    Every method raises
        RefusedError: the server refuses; the message is its own.
        TemporaryError: the server stayed away for `retry_s`, or is overloaded.
    """

    def __init__(self, settings: "Configuration", *, name: str, retry_s: float):
        self.name = name
        """How messages call it."""
        self._wire = Wire(settings, what=f"{name} cluster", retry_s=retry_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Give the connections back."""
        self._wire.close()

    def get(self, kind: Kind, namespace: str, name: str) -> Object | None:
        """One object, or None."""
        return self._wire.call("GET", kind.path(namespace, name), absent_is_none=True)

    def list(
        self, kind: Kind, namespace: str, *, labels: Mapping[str, str] | None = None, field: str = ""
    ) -> list[Object]:
        """All objects of a kind in a namespace ("": in all) that have these labels.

        Args:
            field: a field selector, `involvedObject.name=x`.
        """
        query = {"limit": "500"}
        if labels:
            query["labelSelector"] = ",".join(f"{key}={value}" for key, value in labels.items())
        if field:
            query["fieldSelector"] = field
        items: list[Object] = []
        while True:
            page = self._wire.call("GET", kind.path(namespace), query)
            assert page is not None
            items += page.get("items") or []
            if not (more := page["metadata"].get("continue")):
                return items
            query["continue"] = more

    def create(self, kind: Kind, body: Object) -> Object:
        """Create an object; what the server made of it.

        A first try whose reply was lost is recognised: the object that is there then has the same
        `tripod/spec` annotation as `body`, and is returned.

        Raises:
            ExistsError: another object has the name.
        """
        meta = body["metadata"]
        namespace = meta.get("namespace", "")
        try:
            made = self._wire.call("POST", kind.path(namespace), {"fieldManager": _FIELD_MANAGER}, body)
        except ExistsError:
            there = self.get(kind, namespace, meta["name"])
            if there is None or not same_spec(there, body):
                raise
            return there
        assert made is not None
        return made

    def patch(self, kind: Kind, namespace: str, name: str, patch: Object) -> Object | None:
        """Merge `patch` (RFC 7386) into an object; None when there is none."""
        return self._wire.call(
            "PATCH",
            kind.path(namespace, name),
            {"fieldManager": _FIELD_MANAGER},
            patch,
            media="application/merge-patch+json",
            absent_is_none=True,
        )

    def apply(self, kind: Kind, body: Object, *, manager: str, force: bool = False) -> Object:
        """Server-side apply of the fields in `body` as `manager`.

        Raises:
            ExistsError: another manager owns one of the fields, and not `force`.
        """
        meta = body["metadata"]
        query = {"fieldManager": manager, "force": json.dumps(force)}
        path = kind.path(meta.get("namespace", ""), meta["name"])
        made = self._wire.call("PATCH", path, query, body, media="application/apply-patch+yaml")
        assert made is not None
        return made

    def delete(self, kind: Kind, namespace: str, name: str, *, uid: str = "") -> bool:
        """Delete an object with what it owns, in the background. False when it was not there.

        Args:
            uid: only if it is still this very object.
        """
        options: Object = {"propagationPolicy": "Background"}
        if uid:
            options["preconditions"] = {"uid": uid}
        return self._wire.call("DELETE", kind.path(namespace, name), body=options, absent_is_none=True) is not None

    def may(self, verb: str, kind: Kind, namespace: str) -> bool:
        """Whether RBAC lets us do `verb` to objects of a kind."""
        group = kind.api_version.partition("/")[0] if "/" in kind.api_version else ""
        asked = {"verb": verb, "group": group, "resource": kind.plural, "namespace": namespace}
        body = {
            "apiVersion": ACCESS_REVIEW.api_version,
            "kind": ACCESS_REVIEW.kind,
            "spec": {"resourceAttributes": asked},
        }
        answer = self._wire.call("POST", ACCESS_REVIEW.path(""), body=body)
        assert answer is not None
        return bool(answer["status"].get("allowed"))

    def version(self) -> str:
        """Version of the API server, such as v1.35.4."""
        answer = self._wire.call("GET", "/version")
        assert answer is not None
        return str(answer["gitVersion"])

    def ask_service(
        self, namespace: str, service: str, port: int, path: str, body: Object | None, timeout_s: float
    ) -> tuple[int, bytes]:
        """Status and body of what a server behind a Service answers, by way of the API server.

        A Service without pods that are ready is asked again for `retry_s`.

        Args:
            body: of a POST; None: a GET.
        """
        return self._wire.ask(f"{SERVICE.path(namespace, service)}:{port}/proxy{path}", body, timeout_s)

    def log(
        self,
        namespace: str,
        pod: str,
        *,
        container: str = "",
        follow: bool = False,
        since: str = "",
        previous: bool = False,
    ) -> Iterator[tuple[str, bytes]]:
        """Lines that a container wrote, each with its time (RFC 3339, 9 digits), without the newline.

        Nothing when the pod is gone or has not started. With `follow` it goes on until the container
        ends, the connection is cut or nothing comes for a minute: call again with the last line's time.

        Args:
            since: only lines after this time.
            previous: of the container before its restart.
        """
        query = {"follow": json.dumps(follow), "timestamps": "true"}
        query |= {"container": container} if container else {}
        query |= {"previous": "true"} if previous else {}
        query |= {"sinceTime": since} if since else {}
        path = f"{POD.path(namespace, pod)}/log"
        for line in self._wire.lines(path, query, none_for=_NOT_STARTED):
            time_of, text = log_line(line, f"{self.name} cluster: log of pod {pod}")
            if time_of > since:
                yield time_of, text


def same_spec(there: Object, body: Object) -> bool:
    """Whether two objects were made from the same thing, as their annotation SPEC says."""
    return bool(mine := _spec(body)) and _spec(there) == mine


def _spec(thing: Object) -> str | None:
    spec: str | None = (thing["metadata"].get("annotations") or {}).get(SPEC)
    return spec


def seconds(stamp: str | None) -> float:
    """A time of Kubernetes (RFC 3339) as seconds since the epoch; 0 when there is none."""
    return datetime.fromisoformat(stamp).timestamp() if stamp else 0.0


def log_line(line: bytes, what: str) -> tuple[str, bytes]:
    """The time of a line of a log that was asked for with times, and its text.

    A kubelet writes times in the zone of its node: here they are in UTC with nine digits, so that they compare
    as texts do.

    Args:
        what: how messages call the log.

    Raises:
        RefusedError: it has no time: it stands there in place of the log, and says why.
    """
    stamp, _, text = line.partition(b" ")
    found = _STAMP.fullmatch(stamp.decode(errors="replace"))
    if not found:
        raise RefusedError(f"{what}: {line.decode(errors='replace')}")
    second, fraction, zone = found.groups()
    if zone != "Z":
        second = datetime.fromisoformat(second + zone).astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S")
    return f"{second}.{fraction or '':0<9}Z", text
