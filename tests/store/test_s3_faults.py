"""What S3 servers and networks do to their clients: each fault at a proxy in front of moto."""

import re
import ssl
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from steps.lib.errors import TemporaryError, UserError
from steps.lib.store import ConflictError, NotFoundError, Store, open_store
from steps.lib.store.s3 import S3Store
from tests.store.servers import DROP, KEY_ID, SECRET, Answer, Proxy, Request, Server

Forward = Callable[[], Answer]
MIB = 1 << 20


@pytest.fixture
def far(proxy: Proxy, use: Callable[[Proxy], str]) -> S3Store:
    """An empty store behind the proxy, with two seconds of patience."""
    return S3Store(use(proxy), retry_s=2)


def is_part(request: Request) -> bool:
    return "partNumber" in request.path


def one_line(error: BaseException) -> str:
    text = str(error)
    assert "\n" not in text
    assert KEY_ID not in text
    assert SECRET not in text
    return text


# ---- settings ---------------------------------------------------------------------------------


@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION"])
def test_the_region_is_what_requests_are_signed_for(proxy, use, monkeypatch, variable):
    """By both clients: `head` is boto3's, `get` obstore's."""
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(name, raising=False)
    store = open_store(use(proxy))
    monkeypatch.setenv(variable, "eu-central-1")
    signed = set()

    def rule(request: Request, forward: Forward) -> Answer:
        signed.add(request.headers["authorization"].split("/")[2])
        return Answer(404)

    proxy.rule = rule
    assert store.head("k") is None
    with pytest.raises(NotFoundError):
        store.get("k")
    assert signed == {"eu-central-1"}


# ---- throttled, slow, away ---------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["get", "create", "read", "upload in parts"])
def test_slow_down_six_times_then_success(proxy: Proxy, use: Callable[[Proxy], str], operation: str) -> None:
    store = open_store(use(proxy))
    store.put("k", b"content")
    store.create("warm", b"")
    left = [6]

    def rule(request: Request, forward: Forward) -> Answer:
        if operation == "upload in parts" and not is_part(request):
            return forward()
        left[0] -= 1
        return Answer(503, "SlowDown") if left[0] >= 0 else forward()

    proxy.rule = rule
    if operation == "get":
        assert store.get("k") == b"content"
    elif operation == "create":
        store.create("new", b"1")
    elif operation == "read":
        assert store.read("k") == b"content"
    else:
        store.upload("big", bytes(9 * MIB))
    assert left[0] < 0


@pytest.mark.parametrize(
    ("operation", "call"),
    [
        ("get", lambda store: store.get("a/k")),
        ("create", lambda store: store.create("a/k", b"")),
        ("list", lambda store: list(store.list("a"))),
        ("delete", lambda store: store.delete(["a/k"])),
        ("read", lambda store: store.read("a/k")),
        ("upload", lambda store: store.upload("a/k", b"1")),
    ],
)
def test_slow_down_for_ever_ends(proxy: Proxy, far: S3Store, operation: str, call: Callable[[Store], object]) -> None:
    proxy.rule = lambda request, forward: Answer(503, "SlowDown")
    started = time.monotonic()
    with pytest.raises(TemporaryError) as caught:
        call(far)
    assert 1.5 < time.monotonic() - started < 15
    text = one_line(caught.value)
    assert text.startswith(f"{operation} a")
    assert proxy.endpoint in text
    assert "503 SlowDown" in text
    assert len(proxy.seen) >= 2


@pytest.mark.parametrize("call", [lambda store: store.get("k"), lambda store: store.read("k")])
def test_nobody_listens(use: Callable[[Server], str], call: Callable[[Store], object]) -> None:
    store = S3Store(use(Server("http://127.0.0.1:9")), retry_s=1)  # the discard port
    with pytest.raises(TemporaryError, match=r"k in s3://\S+ at http://127.0.0.1:9.*gave up after"):
        call(store)


@pytest.mark.parametrize("call", [lambda store: store.get("k"), lambda store: store.read("k")])
def test_a_server_that_never_answers(
    proxy: Proxy, use: Callable[[Proxy], str], call: Callable[[Store], object]
) -> None:
    store = S3Store(use(proxy), retry_s=1)
    over = threading.Event()

    def rule(request: Request, forward: Forward) -> Answer:
        over.wait(30)
        return DROP

    proxy.rule = rule
    started = time.monotonic()
    with pytest.raises(TemporaryError, match="k in s3://"):
        call(store)
    over.set()
    assert time.monotonic() - started < 15


def test_patience_comes_from_the_environment(s3_uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for bad in ("soon", "-1", "nan", "1e9"):
        monkeypatch.setenv("TRIPOD_STORE_RETRY_S", bad)
        with pytest.raises(UserError, match=f"TRIPOD_STORE_RETRY_S: got '{bad}'"):
            open_store(s3_uri)


# ---- conditions --------------------------------------------------------------------------------


def deaf_to(header: str) -> Callable[[Request, Forward], Answer]:
    """A server that does not know `header`."""

    def rule(request: Request, forward: Forward) -> Answer:
        if request.method == "PUT" and header in request.headers:
            return Answer(200, headers={"ETag": '"0"'})
        return forward()

    return rule


@pytest.mark.parametrize("header", ["If-None-Match", "If-Match"])
def test_a_server_that_ignores_a_condition_is_found_out(proxy: Proxy, far: S3Store, header: str) -> None:
    proxy.rule = deaf_to(header.lower())
    for write in (lambda: far.create("k", b"1"), lambda: far.swap("k", b"1", '"tag"')):
        with pytest.raises(UserError, match=rf"{proxy.endpoint} ignores {header} on PUT"):
            write()
    assert far.head("k") is None


def test_if_match_on_a_missing_object_is_found_out(proxy: Proxy, far: S3Store) -> None:
    def rule(request: Request, forward: Forward) -> Answer:
        answer = forward()
        return (
            Answer(200, headers={"ETag": '"0"'}) if request.headers.get("if-match") and answer.status == 404 else answer
        )

    proxy.rule = rule
    with pytest.raises(UserError, match="ignores If-Match on PUT"):
        far.create("k", b"1")


def test_the_proof_is_asked_for_once(proxy: Proxy, far: S3Store) -> None:
    far.create("a", b"")
    before = len(proxy.seen)
    far.swap("b", b"2", far.create("b", b"1"))
    assert len(proxy.seen) == before + 2


def test_304_for_412(proxy: Proxy, far: S3Store) -> None:
    def rule(request: Request, forward: Forward) -> Answer:
        answer = forward()
        return Answer(304) if answer.status == 412 else answer

    proxy.rule = rule
    tag = far.create("k", b"1")
    with pytest.raises(ConflictError):
        far.create("k", b"2")
    far.put("k", b"3")
    with pytest.raises(ConflictError):
        far.swap("k", b"4", tag)
    assert far.get("k") == b"3"


@pytest.mark.parametrize("operation", ["create", "swap"])
def test_an_answer_lost_on_the_way_is_no_conflict(proxy: Proxy, far: S3Store, operation: str) -> None:
    tag = far.create("k" if operation == "swap" else "other", b"1")
    lost = [True]

    def rule(request: Request, forward: Forward) -> Answer:
        answer = forward()
        if request.method == "PUT" and lost:
            lost.clear()
            return DROP
        return answer

    proxy.rule = rule
    new = far.swap("k", b"mine", tag) if operation == "swap" else far.create("k", b"mine")
    assert not lost
    assert far.get_tagged("k") == (b"mine", new)


def test_a_twin_that_was_faster_is_a_conflict_though_the_answer_was_lost(proxy: Proxy, far: S3Store) -> None:
    far.create("other", b"")
    twin = [True]

    def rule(request: Request, forward: Forward) -> Answer:
        if request.method == "PUT" and twin:
            twin.pop()
            far.put("k", b"same")  # equal bytes: only who wrote them differs
            return DROP
        return forward()

    proxy.rule = rule
    with pytest.raises(ConflictError):
        far.create("k", b"same")


# ---- credentials -------------------------------------------------------------------------------


def rotate(folder: Path, key_id: str) -> None:
    (folder / "aws-credentials").write_text(f"[default]\naws_access_key_id = {key_id}\naws_secret_access_key = s\n")


@pytest.fixture
def from_file(far: S3Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """A store whose credentials are in a file."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    rotate(tmp_path, "old")
    return far


def expire_old_from_part_two(then: Callable[[], None]) -> Callable[[Request, Forward], Answer]:
    def rule(request: Request, forward: Forward) -> Answer:
        part = re.search(r"partNumber=(\d+)", request.path)
        if part and int(part[1]) >= 2 and "Credential=old/" in request.headers["authorization"]:
            then()
            return Answer(400, "ExpiredToken")
        return forward()

    return rule


def test_credentials_renewed_during_an_upload(proxy: Proxy, from_file: S3Store, tmp_path: Path) -> None:
    proxy.rule = expire_old_from_part_two(lambda: rotate(tmp_path, "new"))
    data = b"0123456789abcdef" * MIB + b"end"
    from_file.upload("big", data)
    assert from_file.read("big") == data
    from_file.put("k", b"with the new ones too")


def test_credentials_expire_during_an_upload(proxy: Proxy, from_file: S3Store, tmp_path: Path, moto: Server) -> None:
    (tmp_path / "big").write_bytes(bytes(17 * MIB))
    proxy.rule = expire_old_from_part_two(lambda: None)
    with pytest.raises(UserError, match="credentials expired") as caught:
        from_file.upload("big", tmp_path / "big")
    assert one_line(caught.value).startswith("upload big in s3://")
    assert from_file.head("big") is None
    bucket, _, prefix = from_file.uri.removeprefix("s3://").partition("/")
    assert not moto.client().list_multipart_uploads(Bucket=bucket, Prefix=prefix).get("Uploads")


@pytest.mark.parametrize(
    "call", [lambda store: store.get("k"), lambda store: store.head("k"), lambda store: store.read("k")]
)
def test_rotated_credentials_are_read_again(
    proxy: Proxy, from_file: S3Store, tmp_path: Path, call: Callable[[Store], object]
) -> None:
    from_file.put("k", b"1")

    def rule(request: Request, forward: Forward) -> Answer:
        return Answer(400, "ExpiredToken") if "Credential=old/" in request.headers["authorization"] else forward()

    proxy.rule = rule
    with pytest.raises(UserError, match=r"credentials (expired|refused)"):
        call(from_file)
    rotate(tmp_path, "new")
    assert call(from_file)


def test_no_credentials(far: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    for call in (far.get, far.read):
        with pytest.raises(UserError, match="AWS_ACCESS_KEY_ID"):
            call("k")


@pytest.mark.parametrize(
    ("status", "code", "says"),
    [
        (403, "AccessDenied", "access denied; allow it .* pipelines.doctor"),
        (403, "InvalidAccessKeyId", "credentials refused; set AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "credentials refused; set AWS_ACCESS_KEY_ID"),
        (404, "NoSuchBucket", r"no such bucket; create it, or set \$TRIPOD_STORE"),
        (403, "RequestTimeTooSkewed", "clock is wrong"),
        (501, "NotImplemented", "because NotImplemented"),
    ],
)
def test_refusals(proxy: Proxy, far: S3Store, status: int, code: str, says: str) -> None:
    proxy.rule = lambda request, forward: Answer(status, code)
    calls = (
        far.get,
        far.read,
        lambda key: far.put(key, b""),
        lambda key: far.upload(key, b""),
        lambda key: far.create(key, b""),
    )
    for call in calls:
        with pytest.raises(UserError, match=says) as caught:
            call("a/k")
        assert re.match(r"(get|read|put|upload|create) a/k in s3://", one_line(caught.value))


def test_a_profile_that_is_not_there(far: S3Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(UserError, match=r"nobody.*mend the AWS_"):
        far.get("k")


# ---- servers of other habits ---------------------------------------------------------------------


def refuses_new_checksums(request: Request, forward: Forward) -> Answer:
    new = any(
        name.startswith("x-amz-checksum-") or name in ("x-amz-trailer", "x-amz-sdk-checksum-algorithm")
        for name in request.headers
    )
    if new or (request.method == "POST" and "delete" in request.path and "content-md5" not in request.headers):
        return Answer(400, "InvalidRequest")
    return forward()


def test_a_server_that_refuses_new_checksums_works_with_one_setting(
    proxy: Proxy, far: S3Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_REQUEST_CHECKSUM_CALCULATION", "when_required")
    proxy.rule = refuses_new_checksums
    far.swap("k", b"2", far.create("k", b"1"))
    far.put("other", b"")
    far.upload("big", bytes(9 * MIB))
    far.delete(["k", "other", "big"])
    assert list(far.list("")) == []


def test_a_server_that_refuses_new_checksums_without_the_setting(proxy: Proxy, far: S3Store) -> None:
    proxy.rule = refuses_new_checksums
    for write in (lambda: far.put("k", b""), lambda: far.create("k", b""), lambda: far.delete(["k"])):
        with pytest.raises(UserError, match="AWS_REQUEST_CHECKSUM_CALCULATION=when_required"):
            write()


def test_a_listing_in_the_servers_own_order(proxy: Proxy, far: S3Store) -> None:
    for key in ("b", "a/1", "c"):
        far.put(key, b"")

    def rule(request: Request, forward: Forward) -> Answer:
        answer = forward()
        if "list-type" in request.path:
            items = re.findall(rb"<Contents>.*?</Contents>", answer.body, re.DOTALL)
            assert len(items) == 3
            answer.body = answer.body.replace(b"".join(items), b"".join(reversed(items)))
        return answer

    proxy.rule = rule
    assert [head.key for head in far.list("")] == ["a/1", "b", "c"]


def test_a_folder_mark_of_a_console_is_no_object(far: S3Store, moto: Server) -> None:
    far.put("a/k", b"")
    bucket, _, prefix = far.uri.removeprefix("s3://").partition("/")
    moto.client().put_object(Bucket=bucket, Key=f"{prefix}/a/", Body=b"")
    assert [head.key for head in far.list("")] == ["a/k"]


def test_a_name_no_key_can_have_is_not_passed_over(far: S3Store, moto: Server) -> None:
    bucket, _, prefix = far.uri.removeprefix("s3://").partition("/")
    moto.client().put_object(Bucket=bucket, Key=f"{prefix}/raw/my file#1.jsonl", Body=b"")
    with pytest.raises(UserError, match=r"my file#1.jsonl.*rename"):
        list(far.list("raw"))


@pytest.mark.parametrize(
    "uri", ["s3://b-b-b/exp 1/ä+ü=50%/run#2/", "s3://b-b-b/a//b", "s3://b-b-b/../x", "s3://b b/x", "s3:///x"]
)
def test_uris_outside_the_grammar(uri: str) -> None:
    with pytest.raises(UserError, match=r"store"):
        open_store(uri)


@pytest.mark.parametrize("slash", ["", "/"])
def test_slashes_at_the_ends_do_not_matter(proxy: Proxy, use: Callable[[Proxy], str], slash: str) -> None:
    proxy.endpoint += slash
    uri = use(proxy)
    store = open_store(uri + slash)
    assert store.uri == uri
    store.put("a/k", b"1")
    store.upload("a/b", b"2")
    assert [head.key for head in store.list("a")] == ["a/b", "a/k"]
    assert store.read("a/k") == b"1"
    assert "//" not in proxy.seen[0].path


# ---- transport ---------------------------------------------------------------------------------


@pytest.fixture
def authority(proxy: Proxy, tmp_path: Path) -> Path:
    """The proxy speaks TLS with a certificate of a site's own; gives the PEM file to trust."""
    from datetime import UTC, datetime, timedelta
    from ipaddress import ip_address

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "site")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key(), serial_number=1)
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, key_pem = tmp_path / "ca.pem", tmp_path / "key.pem"
    pem.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, key_pem)
    proxy.speak_tls(context)
    return pem


def test_a_sites_own_certificate(
    authority: Path, proxy: Proxy, use: Callable[[Proxy], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = use(proxy)
    assert proxy.endpoint.startswith("https://")
    stranger = S3Store(uri, retry_s=1)
    for call in (lambda: stranger.put("k", b"1"), lambda: stranger.upload("k", b"1")):
        with pytest.raises(UserError, match="certificate is not trusted; set AWS_CA_BUNDLE"):
            call()
    monkeypatch.setenv("AWS_CA_BUNDLE", str(authority))
    store = open_store(uri)
    store.put("k", b"1")
    store.upload("big", b"2")
    assert (store.get("k"), bytes(store.read("big"))) == (b"1", b"2")
    monkeypatch.setenv("AWS_CA_BUNDLE", "/nowhere.pem")
    with pytest.raises(UserError, match=r"AWS_CA_BUNDLE: got '/nowhere\.pem'"):
        open_store(uri).get("k")


def test_a_missing_bucket(moto: Server, use: Callable[[Server], str]) -> None:
    use(moto)
    store = open_store("s3://no-such-bucket/x")
    for call in (store.get, store.read, lambda key: store.create(key, b""), lambda key: list(store.list(key))):
        with pytest.raises(UserError, match="no such bucket"):
            call("k")
    with pytest.raises(NotFoundError):
        open_store(f"{use(moto)}/deeper").get("k")
