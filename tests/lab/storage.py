"""The S3 server of the lab: versitygw on the bridge, with an identity and a bucket for each team."""

import json
import secrets

from tests.lab.places import BIN, GATEWAY, RUN, S3_ENDPOINT, S3_PORT, TEAMS
from tests.lab.processes import is_alive, run, start, stop, wait_for

FOLDER = RUN / "s3"


def up() -> None:
    """Start it, with a fresh identity for each team when there is no data yet."""
    if is_alive(FOLDER, "versitygw"):
        return
    for name in ("data", "iam"):
        (FOLDER / name).mkdir(parents=True, exist_ok=True)
    file = FOLDER / "identities.json"
    if is_new := not file.exists():
        file.write_text(json.dumps({name: secrets.token_hex(16) for name in ("admin", *TEAMS)}))
    identities = json.loads(file.read_text())
    start(
        FOLDER,
        "versitygw",
        [BIN / "versitygw", "--port", f"{GATEWAY}:{S3_PORT}", "--iam-dir", FOLDER / "iam", "posix", FOLDER / "data"],
        env={"ROOT_ACCESS_KEY": "admin", "ROOT_SECRET_KEY": identities["admin"]},
    )
    wait_for(lambda: "bucket" in _admin("list-buckets", check=False).lower(), "S3 server", every_s=0.2)
    for team in TEAMS if is_new else ():
        _admin("create-user", "--access", team, "--secret", identities[team], "--role", "user")
        _admin("create-bucket", "--bucket", f"{team}-store", "--owner", team)


def identity(name: str) -> dict[str, str]:
    """Environment of a client that is `name`: a team, or admin."""
    secret = json.loads((FOLDER / "identities.json").read_text())[name]
    return {
        "AWS_ENDPOINT_URL": S3_ENDPOINT,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": name,
        "AWS_SECRET_ACCESS_KEY": secret,
        "AWS_REQUEST_CHECKSUM_CALCULATION": "when_required",
        "AWS_RESPONSE_CHECKSUM_VALIDATION": "when_required",
    }


def credentials_file(name: str) -> str:
    """As the AWS clients read it."""
    env = identity(name)
    return f"[default]\naws_access_key_id = {name}\naws_secret_access_key = {env['AWS_SECRET_ACCESS_KEY']}\n"


def down() -> None:
    """Stop it. Its data goes with the lab's run folder."""
    stop(FOLDER, "versitygw")


def _admin(*words: str, check: bool = True) -> str:
    secret = json.loads((FOLDER / "identities.json").read_text())["admin"]
    env = {"ADMIN_ACCESS_KEY": "admin", "ADMIN_SECRET_KEY": secret}
    return run(BIN / "versitygw", "admin", "--endpoint-url", S3_ENDPOINT, *words, check=check, env=env)
