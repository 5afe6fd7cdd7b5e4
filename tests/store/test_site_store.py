"""Commands reach a site's store as its steps do: by the site's settings, with nothing but credentials in the environment."""

import os
import subprocess
import sys

from pipelines.settings.load import load_site, open_site_store
from tests.store.servers import BUCKET


def test_the_endpoint_of_the_site_is_every_commands(moto, use, monkeypatch, tmp_path):
    use(moto)
    monkeypatch.delenv("AWS_ENDPOINT_URL")
    site = tmp_path / "mine.toml"
    site.write_text(f'engine = "local"\n[store]\nuri = "s3://{BUCKET}/mine"\nendpoint = "{moto.endpoint}"\n')
    argv = [sys.executable, "-m", "pipelines.runs", "list", "--site", str(site)]
    env = {**os.environ, "TRIPOD_STORE_RETRY_S": "2"}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    again = subprocess.run(
        argv, env={**env, "AWS_ENDPOINT_URL": "http://127.0.0.1:9"}, capture_output=True, text=True, timeout=60
    )
    assert again.returncode == 0, (
        "the site's setting is what its steps use; another in the environment does not split them"
    )


def test_a_ca_file_of_the_pods_is_not_asked_of_a_persons_machine(moto, use, monkeypatch, tmp_path):
    uri = use(moto)
    for engine, expected in (("argo", None), ("local", "/etc/pods/ca.crt")):
        monkeypatch.setattr(os, "environ", {k: v for k, v in os.environ.items() if k != "AWS_CA_BUNDLE"})
        site = tmp_path / "mine.toml"
        site.write_text(f'engine = "{engine}"\n[store]\nuri = "{uri}"\nca_bundle = "/etc/pods/ca.crt"\n')
        open_site_store(load_site(str(site)).value)
        assert os.environ.get("AWS_CA_BUNDLE") == expected
