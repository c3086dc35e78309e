"""Claims whose parameters were sent as Python's json.dumps writes them: with spaces, and with `<` as it is.

The API server keeps such bytes, but writes them anew when anything of the claim is patched, and then refuses the patch for a
changed spec. What we write to such claims must arrive all the same, and must not change those bytes.
"""

import pytest

from hack.controlplane.api import ApiError
from tests.e2e.lab import T4, allocated_by
from tests.e2e.objects import claim, opaque, part, pod, template

pytestmark = pytest.mark.on_1_36

FINALIZER = "resource.kubernetes.io/delete-protection"
PARAMETERS = [
    opaque("nvidia.hami.io", apiVersion="hami.io/v1alpha1", kind="DeviceConfig", memoryPercent=50),
    opaque("another.example.com", note="a < b && c > d", numbers=[1, 2.50, {"deep": " "}]),
]


def is_protected(item):
    return FINALIZER in item["metadata"].get("finalizers", ())


@pytest.fixture
def half(lab):
    """A claim and a template for half the memory of a card, which no patch of their metadata can reach."""
    lab.machines(T4, "t4")
    what = part(memory=None)
    lab.create_spaced(
        claim("claim", what, config=PARAMETERS, annotations={"of": "the user"}),
        template("template", what, config=PARAMETERS),
    )
    with pytest.raises(ApiError, match=r"spec: .*field is immutable"):
        lab.api.patch(f"{lab.claims_path}/claim", {"metadata": {"annotations": {"a": "b"}}})
    return lab


def test_their_pods_are_bound_and_nothing_stays(half):
    half.create(pod("by-claim", claims=["claim"]), pod("by-template", templates=["template"]))
    placed = half.wait_running(names=["by-claim", "by-template"])
    assert [each.memory for each in placed] == [[15360 * 2**20 // 2]] * 2
    for item in half.claims():
        assert is_protected(item)
        assert allocated_by(item)
        assert item["spec"]["devices"]["config"] == PARAMETERS
    # the bytes of the user's claim are those that were sent: a patch is refused as before
    with pytest.raises(ApiError, match="field is immutable"):
        half.api.patch(f"{half.claims_path}/claim", {"metadata": {"labels": {"a": "b"}}})
    assert half.claim("claim")["metadata"]["annotations"]["of"] == "the user"
    assert half.overcommitted() == []

    half.delete_pod("by-claim")
    half.delete_pod("by-template")
    half.hami.wait_for("only the user's claim left", lambda: list(map(is_protected, half.claims())) == [False])
    left = half.claim("claim")
    assert left["metadata"]["annotations"] == {"of": "the user"}
    assert "allocation" not in left.get("status", {})

    half.create(pod("again", claims=["claim"]))  # the same claim once more
    half.wait_running(names=["again"])
