"""Our limits against the API server's own validation.

slice_limits.jsonl: slices, each changed in one place, with what ValidateResourceSlice of k8s.io/kubernetes v1.37.1 says (after
defaulting and conversion from resource.k8s.io/v1, default feature gates). Made once with a Go program of thirty lines around
that function; `errors` are its messages, empty where it accepts.
"""

import json
import re
from pathlib import Path

import pytest

from tests.support.slice_limits import check_slice

CASES = [json.loads(line) for line in Path(__file__).with_name("slice_limits.jsonl").read_text().splitlines()]
STRICTER = {"attribute name: two slashes", "capacity name: two slashes"}
"""Kubernetes lets these through by mistake (a TODO in its validateQualifiedName says so)."""


def bare(field):
    """Without the keys of maps: a decoder does not name them."""
    return re.sub(r"\[[^]0-9][^]]*\]", "", field)


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_a_slice_is_refused_exactly_where_kubernetes_refuses_it(case):
    found = check_slice(case["slice"])
    if case["name"] in STRICTER:
        assert found
        assert not case["errors"]
        return
    assert bool(found) == bool(case["errors"]), [str(violation) for violation in found] or case["errors"]
    fields = [bare(violation.field) for violation in found]
    for error in case["errors"]:
        if error.startswith("decode: "):
            continue  # Go's JSON decoder names no field
        field = bare(error.split(": ")[0])
        assert any(field.startswith(ours) or ours.startswith(field) for ours in fields), (field, fields)


@pytest.mark.parametrize("case", [case for case in CASES if case["errors"]], ids=lambda case: case["name"])
def test_a_violation_names_object_field_and_what_to_do(case):
    for violation in check_slice(case["slice"]):
        assert violation.object == case["slice"]["metadata"]["name"] or "metadata.name" in violation.field
        assert violation.field
        assert len(violation.problem) > 15
