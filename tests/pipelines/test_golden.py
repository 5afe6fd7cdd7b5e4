"""The YAML of the shipped recipes, line by line: `make golden` writes it anew, the diff is for review."""

from pathlib import Path

import pytest

from pipelines.build import build
from pipelines.settings.load import load

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize(("model", "site"), [("tiny", "local"), ("llama3-8b", "prod")])
def test_yaml(model, site, request, monkeypatch):
    monkeypatch.setenv("TRIPOD_STORE", "file:///data/tripod")
    text = build(*load(model, site), run_id=f"{model}-20260101-000000-abcd").to_yaml()
    path = GOLDEN / f"{model}-{site}.yaml"
    if request.config.getoption("--write-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()
