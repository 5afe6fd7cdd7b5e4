"""Names are valid, stable and different (cases.md A11 and its kind)."""

import re

import pytest
from hypothesis import given, strategies as st

from pipelines.names import MAX_CHARS, dns_name, new_run_id

DNS_LABEL = re.compile(r"[a-z]([a-z0-9-]*[a-z0-9])?")  # RFC 1035


@pytest.mark.parametrize("name", ["tiny", "llama3-8b"])
def test_a_good_name_stays(name):
    assert dns_name(name) == name


@pytest.mark.parametrize("name", ["Qwen/Qwen3-0.6B", "0day/x_", "m" * 90, "模型/测试", "", "-", "a_b"])
def test_any_name_becomes_a_label(name):
    assert DNS_LABEL.fullmatch(dns_name(name))


def test_names_that_look_alike_stay_apart():
    names = ["a/b-c", "a-b/c", "a-b-c", "A-B-C", "a_b_c"]
    assert len({dns_name(name) for name in names}) == len(names)


@given(st.text(), st.integers(12, MAX_CHARS))
def test_length_and_form(name, max_chars):
    label = dns_name(name, max_chars)
    assert DNS_LABEL.fullmatch(label)
    assert len(label) <= max_chars
    assert label == dns_name(name, max_chars)


def test_run_ids_differ_and_leave_room_for_pod_suffixes():
    ids = {new_run_id("Qwen/Qwen3-0.6B" * 9) for _ in range(20)}
    assert len(ids) == 20
    assert all(DNS_LABEL.fullmatch(i) and len(i) <= 52 for i in ids)
