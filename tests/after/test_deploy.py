"""steps.deploy with a stub in vLLM's place: refusals, adoption, swaps, and that nothing is left running."""

import json
import socket
import urllib.request
from pathlib import Path

import pytest

from steps.lib import folder, process, registry, vllm
from steps.lib.errors import RejectedError, TemporaryError, UserError
from steps.lib.process import started
from steps.lib.serving import Serving
from tests.after.serving import Place, publish_model

pytestmark = pytest.mark.filterwarnings("ignore:subprocess .* is still running:ResourceWarning")


@pytest.fixture
def place(store, tmp_path):
    """A machine; what still serves on it at the end is ended."""
    place = Place(store, tmp_path)
    yield place
    serving = serving_of(place)
    for endpoint in serving.all()[0]:
        serving.end(endpoint)


def serving_of(place: Place) -> Serving:
    return Serving(place.env, place.store.uri)


def healthy(endpoint: str) -> bool:
    with urllib.request.urlopen(endpoint.removesuffix("/v1") + "/health", timeout=5) as answer:
        return answer.status == 200


def test_without_keep_it_answers_once_and_nothing_stays(place):
    result = place.deploy(publish_model(place.store))
    assert (result.endpoint, result.completion, result.adopted) == ("", " after 'def '", False)
    assert serving_of(place).all() == ([], [])


def test_a_smoke_test_that_passed_is_not_repeated(place):
    model = publish_model(place.store)
    first = place.deploy(model)
    assert place.deploy(model) == first
    assert place.num_starts == 1
    assert "nothing to start" in place.said[-1]
    place.deploy(model, prompt="class ")
    place.deploy(publish_model(place.store, "v2"))
    assert place.num_starts == 3, "another prompt and another digest are other tests"


def test_a_kept_server_is_adopted(place):
    model = publish_model(place.store)
    kept = place.deploy(model, keep=True)
    assert healthy(kept.endpoint)
    for keep in (True, False):
        again = place.deploy(model, keep=keep)
        assert (again.endpoint, again.adopted) == (kept.endpoint, True)
    assert place.num_starts == 1


def test_another_setting_is_another_server(place):
    model = publish_model(place.store)
    old = place.deploy(model, keep=True)
    new = place.deploy(model, keep=True, max_model_len=100)
    assert new.endpoint != old.endpoint
    assert [e.settings["max_model_len"] for e in serving_of(place).all()[0]] == [100]


def test_the_old_version_answers_until_the_new_one_has(place):
    old = place.deploy(publish_model(place.store, "v1"), keep=True)
    before = serving_of(place).find("m")
    place.stub(old=old.endpoint.removesuffix("/v1"))
    new = place.deploy(publish_model(place.store, "v2"), keep=True)
    assert new.completion == "the old one answers"
    assert healthy(new.endpoint)
    assert not before.alive
    assert [e.model for e in serving_of(place).all()[0]] == ["models/m/v2"]


@pytest.mark.parametrize("mode", ["empty", "deaf", "refuses"])
def test_a_new_version_that_fails_leaves_the_old_one(place, mode):
    old = place.deploy(publish_model(place.store, "v1"), keep=True)
    place.stub(mode=mode)
    with pytest.raises(RejectedError):
        place.deploy(publish_model(place.store, "v2"), keep=True)
    assert healthy(old.endpoint)
    assert [e.model for e in serving_of(place).all()[0]] == ["models/m/v1"]


def test_chat_is_asked_when_there_is_a_template(place):
    assert place.deploy(publish_model(place.store, chat_template=True)).completion
    assert not any("no chat template" in line for line in place.said)


@pytest.mark.parametrize(
    ("meta", "changes", "said"),
    [
        ({"without": "config.json"}, {}, r"models/m/v1: lacks config.json;"),
        ({"without": "tokenizer_config.json"}, {}, r"models/m/v1: lacks tokenizer_config.json;"),
        ({}, {"max_model_len": 129}, r"max_model_len: got 129, models/m/v1 allows at most 128"),
        ({}, {"max_tokens": 64}, r"max_tokens: got 64, allowed is less than max_model_len, 64"),
        ({"needs": "99"}, {}, r"written for transformers 99, the server has 5\."),
        ({"bytes": 1 << 60}, {}, r"weights of 1073741824.0 GiB .* do not fit into this machine"),
    ],
)
def test_refused_before_anything_starts(place, meta, changes, said):
    model = publish_model(place.store, **meta)
    with pytest.raises(UserError, match=said):
        place.deploy(model, **changes)
    assert place.num_starts == 0


def test_a_folder_with_a_hole_is_refused(place):
    model = publish_model(place.store)
    weights = next(file for file in folder.load(place.store, model).files if file.name == "model.safetensors")
    place.store.delete([weights.key])
    with pytest.raises(UserError, match=rf"models/m/v1 is broken: {weights.key} is missing"):
        place.deploy(model)
    assert place.num_starts == 0


def test_a_busy_port_is_refused(place):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(UserError, match=rf"port: got {port}, which is taken by another program"):
            place.deploy(publish_model(place.store), port=port)
    assert place.num_starts == 0


def test_a_port_that_another_model_has_is_refused_by_name(place):
    model, port = publish_model(place.store), vllm.free_port()
    place.deploy(model, keep=True, port=port)
    with pytest.raises(UserError, match=rf"port: got {port}, which is taken by m, pid \d+"):
        place.deploy(model, name="other", port=port)


def test_a_fixed_port_is_reached_with_a_second_call(place):
    """Two processes cannot have one port, and the old version must answer throughout."""
    port = vllm.free_port()
    place.deploy(publish_model(place.store, "v1"), keep=True, port=port)
    moved = place.deploy(publish_model(place.store, "v2"), keep=True, port=port)
    assert moved.endpoint != f"http://127.0.0.1:{port}/v1"
    assert any("the same command again moves it" in line for line in place.said)
    assert place.deploy("models/m/v2", keep=True, port=port).endpoint == f"http://127.0.0.1:{port}/v1"


def test_a_server_that_dies_says_why(place):
    place.stub(mode="RuntimeError: no kernel for this\nRuntimeError: Engine failed. See root cause above.")
    with pytest.raises(UserError, match=r"vLLM ended with code 1 before it was healthy: RuntimeError: no kernel"):
        place.deploy(publish_model(place.store))
    assert "server's log: RuntimeError: no kernel for this" in place.said


def test_a_server_that_is_killed_may_be_tried_again(place):
    place.stub(mode="kill")
    with pytest.raises(TemporaryError, match=r"vLLM was ended by signal 9"):
        place.deploy(publish_model(place.store))


def test_a_port_lost_meanwhile_may_be_tried_again(place):
    place.stub(mode="OSError: [Errno 98] Address already in use")
    with pytest.raises(TemporaryError, match=r"port \d+ was taken meanwhile"):
        place.deploy(publish_model(place.store))


def test_a_server_that_never_answers_is_given_up_and_ended(place, monkeypatch, tmp_path):
    monkeypatch.setattr(vllm, "_START_S", 4.0)
    child = tmp_path / "child"
    place.stub(mode="silent", child=child)
    with pytest.raises(TemporaryError, match=r"not within 4 s; last seen: INFO: stub is up"):
        place.deploy(publish_model(place.store))
    assert started(int(child.read_text())) == ""


def test_a_name_is_deployed_by_one_at_a_time(place):
    with serving_of(place).lock("m"), pytest.raises(TemporaryError, match="another deployment of this name"):
        place.deploy(publish_model(place.store))


def test_what_a_dead_server_left_is_removed(place):
    model = publish_model(place.store)
    place.deploy(model, keep=True)
    dead = serving_of(place).find("m")
    serving = serving_of(place)
    serving.keep(dead.model_copy(update={"started": "long ago", "port": 1}))
    serving.keep(dead.model_copy(update={"pid": 2**22 + 1, "folder": "/nonexistent"}))
    assert serving.find("m") == dead, "the first that is alive serves"
    assert place.deploy(model, keep=True).adopted
    assert len(json.loads(next((place.starts.parent / "state").rglob("*.json")).read_text())) == 1


def test_an_unhealthy_server_is_replaced(place):
    """Its process lives, but it does not answer."""
    model = publish_model(place.store)
    place.deploy(model, keep=True)
    old = serving_of(place).find("m")
    serving_of(place).keep(old.model_copy(update={"port": vllm.free_port()}))
    assert not place.deploy(model, keep=True).adopted
    assert place.num_starts == 2


def test_notes_are_beside_the_model(place):
    place.deploy(publish_model(place.store))
    keys = [head.key for head in place.store.list("models/m/smoke")]
    assert len(keys) == 1
    assert json.loads(place.store.get(keys[0]))["completion"] == " after 'def '"
    assert registry.names(place.store) == [], "a note is no registration"


def test_a_damaged_state_file_stops_everything_and_loses_nothing(place):
    place.deploy(publish_model(place.store), keep=True)
    serves = serving_of(place).find("m")
    (state,) = (Path(place.env["TRIPOD_STATE"]) / "serving").glob("*/*/*.json")
    whole = state.read_bytes()
    state.write_bytes(whole[:-9])
    for call in (
        lambda: place.deploy("models/m/v1", keep=True),
        lambda: serving_of(place).find("m"),
        lambda: serving_of(place).settle("m"),
    ):
        with pytest.raises(UserError, match=rf"{state}: unreadable: .*; end the vLLM that it may name"):
            call()
    assert Path(serves.folder).is_dir()
    kept = place.deploy("models/m/v1", name="other", keep=True).endpoint
    seen, (problem,) = serving_of(place).all()
    assert [e.url for e in seen] == [kept], "one file that cannot be read hides no other server"
    assert problem.startswith(f"{state}: unreadable")
    state.write_bytes(whole)
    assert serving_of(place).find("m") == serves
    assert serves.alive


def test_servers_of_another_machine_with_this_home_folder_are_not_ours(place, monkeypatch):
    place.deploy(publish_model(place.store), keep=True)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("socket.gethostname", lambda: "another")
        assert serving_of(place).all() == ([], [])
    assert len(serving_of(place).all()[0]) == 1


def test_servers_of_a_container_with_this_machines_name_are_not_ours(place, monkeypatch):
    place.deploy(publish_model(place.store), keep=True)
    serves = serving_of(place).find("m")
    (state,) = (Path(place.env["TRIPOD_STATE"]) / "serving").glob("*/*/*.json")
    whole = state.read_bytes()
    with monkeypatch.context() as container:
        inside = process.place()._replace(pid_space="pid:[1]")
        container.setattr(process, "place", lambda: inside)
        with pytest.raises(UserError, match=rf"{state}: m is served from another place .* pid {serves.pid}\); stop it"):
            place.deploy(publish_model(place.store, "v2"), keep=True)
        with pytest.raises(UserError, match="stop it there, or remove the file"):
            serving_of(place).settle("m")
        assert serving_of(place).all()[0] == []
    assert state.read_bytes() == whole
    assert Path(serves.folder).is_dir()
    assert serves.alive


def test_what_served_before_the_machine_started_anew_is_gone(place):
    """The same pid and, by chance, the same start since boot: still another process."""
    place.deploy(publish_model(place.store), keep=True)
    serves = serving_of(place).find("m")
    before = serves.model_copy(update={"boot_id": "an earlier one"})
    assert not before.alive
    assert not before.elsewhere


def test_a_damaged_note_is_no_passed_smoke_test(place):
    model = publish_model(place.store)
    place.deploy(model)
    (note,) = (head.key for head in place.store.list("models/m/smoke"))
    for data in (b"{", b"[]", b"{}"):
        place.store.put(note, data)
        assert place.deploy(model).completion == " after 'def '"
        assert json.loads(place.store.get(note))["completion"] == " after 'def '"
    assert place.num_starts == 4


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"{", "damaged: Expecting property name"),
        (b"3", "damaged: 'int' object is not iterable"),
        (b'{"hidden_size": 64}', "lacks num_attention_heads, num_hidden_layers, transformers_version"),
    ],
)
def test_a_damaged_config_is_one_line(place, data, why):
    model = publish_model(place.store, config=data)
    with pytest.raises(UserError, match=rf"models/m/v1/.*config.json: {why}.*; export the model again"):
        place.deploy(model)
    assert place.num_starts == 0


def test_a_manifest_that_says_too_little_is_one_line(place):
    model = publish_model(place.store, untold=("eos_id", "dtype"))
    with pytest.raises(UserError, match=r"models/m/v1/manifest.json: says no dtype, eos_id; export it again"):
        place.deploy(model)
