"""The main job: two axes, four patterns, for the manifests in examples/ as they are, in each of their three forms."""

import pytest

from tests.e2e.lab import A10G, EXAMPLES, T4
from tests.e2e.observe import pattern

pytestmark = pytest.mark.on_1_36

# Two nodes with four cards each: a T4 holds two of the pods, an A10G three.
SHAPES = {
    "a-node-binpack-gpu-binpack": {"2+2", "3+1"},
    "b-node-spread-gpu-binpack": {"2 | 2"},
    "c-node-binpack-gpu-spread": {"1+1+1+1"},
    "d-node-spread-gpu-spread": {"1+1 | 1+1"},
}


@pytest.mark.parametrize("folder", [".", "claims", "classes"], ids=["legacy", "claims", "classes"])
def test_the_four_patterns_one_after_the_other(lab, folder):
    lab.machines(T4, "t4")
    lab.machines(A10G, "a10g")
    seen = {}
    for name in SHAPES:
        path = EXAMPLES / folder / f"{name}.yaml"
        lab.apply_file(path)
        found = lab.wait_running(4)
        seen[name] = pattern(found)
        assert all(placement.memory == [7500 << 20] for placement in found)
        assert {lab.bound_by(placement.pod) for placement in found} == {"default-scheduler"}
        assert lab.overcommitted() == []
        lab.delete_file(path)
        lab.wait_empty()
    assert {name: shape for name, shape in seen.items() if shape not in SHAPES[name]} == {}
