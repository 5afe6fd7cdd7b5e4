"""The EXAMPLEs of the steps that act on a live system: run twice, adopted or the same again."""

import pytest

from steps import deploy, notify, register
from tests.after.serving import Place
from tests.examples import seed_examples, seed_model
from tests.steps.calling import context


@pytest.fixture
def seeded(store):
    seed_examples(store)
    seed_model(store)
    return store


def test_register_and_deploy(seeded, tmp_path):
    first = register.run(register.EXAMPLE, context(seeded))
    assert first.champion
    assert register.run(register.EXAMPLE, context(seeded)) == first
    place = Place(seeded, tmp_path)
    served = deploy.run(deploy.EXAMPLE, place.context())
    assert served.completion
    assert deploy.run(deploy.EXAMPLE, place.context()) == served
    assert place.num_starts == 1


def test_notify(store):
    assert notify.run(notify.EXAMPLE, context(store)) == notify.Result(sent=False)
