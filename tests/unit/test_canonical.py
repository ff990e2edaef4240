"""Canonical JSON and digests."""

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unlearning_grid.spec.canonical import canonical, digest, digest_tree

JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


def test_known_values():
    assert canonical({"b": 1, "a": [True, None, "é", 0.1]}) == '{"a":[true,null,"é",0.1],"b":1}'
    assert digest({}) == hashlib.sha256(b"{}").hexdigest()


@given(st.dictionaries(st.text(), JSON))
def test_key_order_does_not_matter(value):
    reversed_order = dict(reversed(list(value.items())))
    assert canonical(reversed_order) == canonical(value)


def test_swapped_values_differ():
    assert digest({"lr": 1, "steps": 2}) != digest({"lr": 2, "steps": 1})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1, 2}, object()])
def test_what_is_not_json_is_refused(value):
    with pytest.raises((ValueError, TypeError)):
        canonical({"x": value})


def test_tree_digest_names_every_file_but_not_snakemakes_mark(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.txt").write_bytes(b"abc")
    (tmp_path / ".snakemake_timestamp").touch()
    sha = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2
    assert digest_tree(tmp_path) == {"sub/a.txt": sha}
    assert digest_tree(tmp_path / "sub" / "a.txt") == sha
