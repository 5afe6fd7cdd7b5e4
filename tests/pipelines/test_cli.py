"""The command line is frozen; the dry run prints the plan and the YAML and starts nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from pipelines import config, train


def test_the_flags_of_train():
    flags = sorted(option for action in train.parser()._actions for option in action.option_strings)
    assert flags == sorted(
        ["-h", "--help", "--model", "--site", "--run-id", "--set", "--dry-run", "--detach", "-v", "--verbose", "--json"]
    )


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A store and a source of our own."""
    monkeypatch.setenv("TRIPOD_STORE", f"file://{tmp_path}/store")
    (tmp_path / "text").mkdir()
    (tmp_path / "text" / "a.txt").write_text("a document of some length")
    return tmp_path


def test_dry_run(place, capsys):
    argv = ["--model", "starter", "--set", f"data.source={place}/text", "--run-id", "mine", "--dry-run"]
    assert train.main(argv) == 0
    seen = capsys.readouterr()
    tree = yaml.safe_load(seen.out)
    assert (tree["kind"], tree["metadata"]["name"]) == ("Workflow", "mine")
    assert "run mine" in seen.err
    assert "ingest           runs     never run before" in seen.err
    assert "tokenizer        unknown  until ingest" in seen.err
    assert not list((place / "store").glob("runs/*"))


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--model", "tiny", "--run-id", "No/Name"], "--run-id: got 'No/Name', allowed are a-z, 0-9 and -"),
        (["--model", "starter", "--set", "data.source=/no/such"], "source /no/such: no such folder"),
        (["--model", "starter", "--set", "scale.nodes=[3]"], "scale.nodes 3:"),
        (["--model", "tiny", "--set", "store.uri=nope"], "store: got 'nope', allowed are file:///absolute/folder"),
        (["--model", "tiny", "--set", "store.uri=s3://"], "store: got bucket '' in 's3://'"),
        (["--model", "tiny", "--set", "store.uri=s3://bucket/a b"], "store key: got 'a b'"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(argv, says, place, capsys):
    assert train.main([*argv, "--dry-run"]) == 2
    assert says in capsys.readouterr().err.splitlines()[-1]


def test_config_show_with_origin(place, capsys):
    assert config.main(["show", "--model", "tiny", "--set", "train.steps=900", "--origin", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["train.steps"] == {"value": 900, "origin": "--set"}
    assert shown["train.micro_batch"]["origin"].endswith("tiny.toml")
    assert shown["train.clip_norm"] == {"value": 1.0, "origin": "default"}
    assert shown["store.uri"] == {"value": f"file://{place}/store", "origin": "$TRIPOD_STORE"}


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from pipelines import train; train.parser().format_help();"
        "print([m for m in ('hera', 'pydantic', 'boto3', 'pyarrow', 'torch') if m in sys.modules])"
    )
    assert subprocess.check_output([sys.executable, "-c", code], text=True).strip() == "[]"


def test_detach_is_refused_where_the_run_would_end_with_the_command(place, capsys):
    assert train.main(["--model", "starter", "--set", f"data.source={place}/text", "--detach"]) == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert line.startswith("error: --detach: site local runs on this machine")
    assert not (place / "store" / "runs").exists()


def test_a_current_folder_that_was_removed_is_named(place, monkeypatch, capsys):
    gone = place / "gone"
    gone.mkdir()
    monkeypatch.setenv("TRIPOD_CONFIG", str(Path("config").absolute()))
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert train.main(["--model", "starter", "--set", f"data.source={place}/text"]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("error: the current folder was removed; cd to one that")


def test_the_commands_are_told_to_who_names_none():
    done = subprocess.run([sys.executable, "-m", "pipelines"], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    told = [line.split()[2].removeprefix("pipelines.") for line in done.stderr.splitlines()]
    folder = Path(train.__file__).parent
    commands = {path.stem for path in folder.glob("*.py") if '__name__ == "__main__"' in path.read_text()}
    assert sorted(told) == sorted(commands - {"__main__"})
    assert done.stderr.splitlines()[0] == "python -m pipelines.train     from raw text to a served model."
