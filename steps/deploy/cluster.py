"""A server on the GPU cluster. The version before answers until the new one has passed its smoke test.

Whatever happens on the way, the Service that users ask points at a version that has passed; what was begun
and did not pass is removed. The next call with the same wish takes up what an ended one has left.
"""

import time
from collections.abc import Iterator

from steps.contract import Context
from steps.deploy import Params, Result, kept, objects, smoke
from steps.deploy.check import Model, check
from steps.deploy.place import Place, read_place
from steps.lib import tree, vllm
from steps.lib.completions import Client, Send
from steps.lib.errors import RejectedError, TemporaryError, TripodError, UserError, is_retryable
from steps.lib.gpu_cluster import open_gpu, passed_on
from steps.lib.kube import Cluster, Object
from steps.lib.kube.kinds import DEPLOYMENT, EVENT, POD, SERVICE
from steps.lib.kube.waits import why_it_waits
from steps.lib.lease import Lease
from steps.lib.wait import wait

_PLACING_S = 15 * 60.0
"""For a node, the image and the model, before vLLM starts."""
_FETCH_BYTES_PER_S = 100e6
_LOOK_EVERY_S = 2.0
_MANAGER = "tripod-deploy"


def deploy(params: Params, ctx: Context) -> Result:
    """See steps.deploy.run."""
    place = read_place(ctx.env)
    model = check(params, ctx)
    settings = _settings(params, model, place)
    spec = objects.ServeSpec(
        name=params.name,
        model=params.model,
        digest=model.digest,
        num_bytes=model.num_bytes,
        settings=settings.__dict__,
        replicas=params.replicas,
        namespace=place.namespace,
        image=place.image,
        nodes=place.nodes,
        s3_secret=place.s3_secret,
        env=passed_on(ctx.env),
        tree=tree.publish(ctx.store, ctx.env),
    )
    key = kept.lease_key(place.namespace, params.name)
    with open_gpu(place) as cluster, Lease(ctx.store, key, run_id=ctx.run_id, say=ctx.say) as lease:
        lease.check()
        serves = kept.in_service(cluster, place.namespace, params.name)
        kept.remove(cluster, place.namespace, params.name, but=(serves, spec.id))  # what an ended call has left
        for old in kept.find_all(cluster, place.namespace, params.name):
            if old.spec == spec.spec and old.ready and params.port in (0, old.port):
                _scale(cluster, spec)
                completion = smoke.ask(_client(cluster, spec, old.service, old.port), params, ctx, model)
                ctx.say(f"{params.name}: {old.url} serves this digest already; adopted")
                return Result(endpoint=old.url, completion=completion, adopted=True)
        note = smoke.Note(params, ctx, model, {"server": place.image, **settings.__dict__})
        if not params.keep and (passed := note.read()):
            _remove(lease, cluster, spec)
            when, completion = passed
            ctx.say(f"smoke test of this digest passed {when}; serving.keep is false, nothing to start")
            return Result(endpoint="", completion=completion, adopted=False)
        return _serve(params, ctx, model, spec, cluster, note, lease)


def _settings(params: Params, model: Model, place: Place) -> vllm.Settings:
    sequence = vllm.cache_bytes(model.config, params.max_model_len, model.dtype)
    heads = int(model.config["num_attention_heads"])
    gpus = params.gpus if place.device == "cuda" else 0
    if gpus and heads % gpus:
        raise UserError(f"serving.gpus: got {gpus}, {params.model} has {heads} attention heads, which it must divide")
    return vllm.Settings(
        name=params.name,
        max_model_len=params.max_model_len,
        dtype=model.dtype,
        cache_bytes=0 if gpus else vllm.total_cache_bytes(sequence),
        gpus=gpus,
    )


def _serve(
    params: Params,
    ctx: Context,
    model: Model,
    spec: objects.ServeSpec,
    cluster: Cluster,
    note: smoke.Note,
    lease: Lease,
) -> Result:
    """Start, wait, smoke test; then swap or end."""
    waiting = _Waiting(cluster, spec)
    cluster.create(DEPLOYMENT, objects.deployment(spec))
    cluster.create(SERVICE, objects.version_service(spec))
    _scale(cluster, spec)
    ctx.say(f"{params.name}: Deployment {spec.version_name} in namespace {spec.namespace} starts")
    try:
        seconds = waiting.wait(ctx)
        completion = smoke.ask(_client(cluster, spec, spec.version_name, objects.PORT), params, ctx, model)
        ctx.say(f"{params.name}: healthy after {seconds:.0f} s, smoke test passed")
        note.write(completion)
        if params.keep:
            _swap(params, spec, cluster, lease)
    except TripodError:
        _remove(lease, cluster, spec)
        raise
    if not params.keep:
        _remove(lease, cluster, spec)
        return Result(endpoint="", completion=completion, adopted=False)
    kept.remove(cluster, spec.namespace, params.name, but=(spec.id,))
    now = next(iter(kept.find_all(cluster, spec.namespace, params.name)), None)
    if now is None or not now.replicas:
        raise TemporaryError(f"{params.name}: somebody has removed it just now; deploy again")
    ctx.say(f"{params.name}: {now.url}, {now.ready} ready; `python -m pipelines.deploy stop {params.name}` ends it")
    return Result(endpoint=now.url, completion=completion, adopted=False)


def _scale(cluster: Cluster, spec: objects.ServeSpec) -> None:
    """As many replicas as are asked for, whoever has scaled it meanwhile."""
    there = cluster.get(DEPLOYMENT, spec.namespace, spec.version_name)
    if there and there["spec"].get("replicas") != spec.replicas:
        cluster.patch(DEPLOYMENT, spec.namespace, spec.version_name, {"spec": {"replicas": spec.replicas}})


def _remove(lease: Lease, cluster: Cluster, spec: objects.ServeSpec) -> None:
    """Remove this version, unless users are answered by it, or somebody else has taken over meanwhile."""
    try:
        lease.check()
    except TripodError:
        return
    serves = kept.in_service(cluster, spec.namespace, spec.name)
    if serves != spec.id:
        kept.remove(cluster, spec.namespace, spec.name, but=(serves,))


def _swap(params: Params, spec: objects.ServeSpec, cluster: Cluster, lease: Lease) -> None:
    """Point the Service that users ask at this version, and ask it; when it does not answer, point it back.

    Raises:
        RejectedError: it does not serve the name.
        TemporaryError: it does not answer.
    """
    name = objects.service_name(spec.name)
    before = cluster.get(SERVICE, spec.namespace, name)
    port = params.port or (before["spec"]["ports"][0]["port"] if before else objects.PORT)
    lease.check()
    cluster.apply(SERVICE, objects.users_service(spec, port, time.time()), manager=_MANAGER, force=True)
    try:
        names = _client(cluster, spec, name, port).models()
        if params.name not in names:
            raise RejectedError(f"service {name} serves {', '.join(names)}, not {params.name}")
    except TripodError:
        if before:
            back = {"labels": before["metadata"]["labels"], "annotations": before["metadata"]["annotations"]}
            spec_back = {"selector": before["spec"]["selector"], "ports": before["spec"]["ports"]}
            cluster.patch(SERVICE, spec.namespace, name, {"metadata": back, "spec": spec_back})
        else:
            cluster.delete(SERVICE, spec.namespace, name)
        raise


def _client(cluster: Cluster, spec: objects.ServeSpec, service: str, port: int) -> Client:
    """Asks a Service by way of the API server: this pod is in another cluster."""

    def send(path: str, body: Object | None, timeout_s: float) -> tuple[int, bytes]:
        return cluster.ask_service(spec.namespace, service, port, path, body, timeout_s)

    ask: Send = send
    return Client(f"service {service} of the {cluster.name} cluster", ask)


class _Waiting:
    """Waits until all replicas are ready, and tells why they are not."""

    def __init__(self, cluster: Cluster, spec: objects.ServeSpec):
        self._cluster, self._spec = cluster, spec
        self._conditions: list[Object] = []
        self._pods = self._look()
        self._old = [ended for _, _, ended in self._ends()]
        """How containers have ended before; by clocks of two machines it could not be told."""

    def wait(self, ctx: Context) -> float:
        """Seconds waited.

        Raises:
            UserError: the server ends by itself.
            TemporaryError: not in time.
        """
        timeout_s = _PLACING_S + self._spec.num_bytes / _FETCH_BYTES_PER_S + vllm.start_timeout_s(self._spec.num_bytes)
        what = f"{self._spec.name}: Deployment {self._spec.version_name} is ready"
        return wait(
            self._is_ready,
            what=what,
            timeout_s=timeout_s,
            state=self._state,
            check=self._check,
            say=ctx.say,
            every_s=_LOOK_EVERY_S,
        )

    def _is_ready(self) -> bool:
        there = self._cluster.get(DEPLOYMENT, self._spec.namespace, self._spec.version_name)
        if there is None:
            raise UserError(f"Deployment {self._spec.version_name}: somebody has deleted it; deploy again")
        self._pods = self._look()
        self._conditions = there.get("status", {}).get("conditions") or []
        return bool(there.get("status", {}).get("readyReplicas", 0) >= self._spec.replicas)

    def _look(self) -> list[Object]:
        labels = objects.version_labels(self._spec)
        return self._cluster.list(POD, self._spec.namespace, labels=labels)

    def _check(self) -> None:
        """Pods that the cluster refuses are never made; a container that has ended by itself would be started again and again."""
        refused = next((c for c in self._conditions if c["type"] == "ReplicaFailure" and c["status"] == "True"), None)
        if refused and not self._pods:
            raise UserError(f"Deployment {self._spec.version_name}: {refused.get('message', refused['reason'])}")
        for pod, container, ended in self._ends():
            code = int(ended["exitCode"])
            final = container["name"] == objects.CONTAINER or not is_retryable(code)  # the kubelet tries `fetch` again
            if code and final and ended not in self._old:
                raise self._explain(pod, container, ended)

    def _ends(self) -> Iterator[tuple[Object, Object, Object]]:
        """Pod, container and end of those that have ended, or had before their restart."""
        for pod in self._pods:
            if "deletionTimestamp" in pod["metadata"] or pod["status"].get("phase") == "Failed":
                continue  # evicted: another takes its place
            for container in self._containers(pod):
                ended = container["state"].get("terminated") or container.get("lastState", {}).get("terminated")
                if ended:
                    yield pod, container, ended

    def _explain(self, pod: Object, container: Object, ended: Object) -> TripodError:
        name, restarted = container["name"], "terminated" not in container["state"]
        lines = self._cluster.log(self._spec.namespace, pod["metadata"]["name"], container=name, previous=restarted)
        try:
            log = "\n".join(line.decode(errors="replace") for _, line in lines)
        except TripodError as e:
            log = str(e)
        if name == objects.CONTAINER:
            if ended.get("reason") == "OOMKilled":
                return UserError(
                    f"vLLM in pod {pod['metadata']['name']}: out of memory; the node has too little for it"
                )
            return vllm.explain(ended["exitCode"], log, objects.PORT)
        said = [line.removeprefix("error: ") for line in log.splitlines() if line.startswith("error: ")]
        last = (said or log.splitlines() or ["it printed nothing"])[-1]
        return UserError(f"{name} in pod {pod['metadata']['name']} ended with code {ended['exitCode']}: {last}")

    def _state(self) -> str:
        for pod in self._pods:
            events = self._cluster.list(
                EVENT, self._spec.namespace, field=f"involvedObject.name={pod['metadata']['name']}"
            )
            if why := why_it_waits(pod, events):
                return why
        ready = sum(c.get("ready", False) for pod in self._pods for c in self._containers(pod)[-1:])
        return f"{ready} of {self._spec.replicas} ready"

    @staticmethod
    def _containers(pod: Object) -> list[Object]:
        status = pod.get("status", {})
        return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
