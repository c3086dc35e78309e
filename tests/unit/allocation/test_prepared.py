"""Claims of equal specs are resolved once, and still every one is spoken of by its own name."""

import msgspec
import pytest

from controller.allocation.errors import AllocatorError
from controller.allocation.features import FeatureGates
from controller.allocation.prepared import prepared
from controller.inventory.inventory import Inventory
from hami_dra.api.core import Namespace
from hami_dra.api.resource import DeviceClass, ResourceClaim

GATES = FeatureGates()


def device_class(expression="true"):
    body = {"metadata": {"name": "gpu"}, "spec": {"selectors": [{"cel": {"expression": expression}}]}}
    return msgspec.convert(body, DeviceClass)


def claim(name, *, selector="true", admin=False, namespace="team"):
    exactly = {"deviceClassName": "gpu", "selectors": [{"cel": {"expression": selector}}]}
    if admin:
        exactly["adminAccess"] = True
    body = {"metadata": {"name": name, "namespace": namespace}}
    body["spec"] = {"devices": {"requests": [{"name": "card", "exactly": exactly}]}}
    return msgspec.convert(body, ResourceClaim)


@pytest.fixture
def inventory():
    made = Inventory()
    made.class_changed(None, device_class())
    return made


def views(inventory, *claims):
    return prepared(inventory, claims, GATES).views


def test_the_second_claim_is_the_first_but_for_its_name(inventory):
    [first], [second] = (views(inventory, claim(name)) for name in ("a", "b"))
    assert (first.claim_key, second.claim_key) == ("team/a", "team/b")
    assert second.claim.metadata.name == "b"
    assert first.shape == second.shape
    assert second.selectors[0].expression == first.selectors[0].expression


def test_messages_name_the_claim_at_hand(inventory):
    for name in ("a", "b"):
        [view] = views(inventory, claim(name, selector="1 +"))
        assert str(view.selectors[0].compile_error()).startswith(
            f"ResourceClaim team/{name}: request card: selectors[0] does not compile"
        )


def test_another_class_object_is_seen(inventory):
    [before] = views(inventory, claim("a"))
    inventory.class_changed(None, device_class("false"))
    [after] = views(inventory, claim("a"))
    assert [each.expression for each in (*before.class_selectors, *after.class_selectors)] == ["true", "false"]
    inventory.class_changed(device_class("false"), None)
    with pytest.raises(AllocatorError, match="DeviceClass gpu does not exist"):
        views(inventory, claim("a"))


def test_claims_in_another_order_are_another_problem(inventory):
    one, two = claim("a"), claim("b", selector="false")
    for claims in ((one, two), (two, one), (one, two)):
        assert [view.claim_key for view in views(inventory, *claims)] == [each.key for each in claims]
        assert [view.claim_index for view in views(inventory, *claims)] == [0, 1]


def test_admin_access_is_a_matter_of_the_namespace_of_each(inventory):
    labels = {"resource.kubernetes.io/admin-access": "true"}
    body = {"metadata": {"name": "admins", "labels": labels}}
    inventory.namespace_changed(None, msgspec.convert(body, Namespace))
    assert views(inventory, claim("a", admin=True, namespace="admins"))
    with pytest.raises(AllocatorError, match="admin-access"):
        views(inventory, claim("a", admin=True))
    assert prepared(inventory, [claim("a", admin=True)], GATES, checks_namespaces=False).views
