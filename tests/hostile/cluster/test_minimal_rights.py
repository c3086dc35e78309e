"""A tenant of these tests holds what Kubernetes' default `edit` role grants in one namespace, and no more."""

from contextlib import closing

import pytest

from tests.hostile.cluster.tenant import Tenant

pytestmark = pytest.mark.on_1_36


def test_a_tenant_may_make_pods_and_claims_in_its_own_namespace_only(control_plane, namespace):
    with closing(Tenant(control_plane, namespace)) as tenant:
        assert tenant.may("create", "pods")
        assert tenant.may("patch", "resourceclaims.resource.k8s.io")
        assert not tenant.may("create", "pods", namespace="default")
        assert not tenant.may("patch", "resourceclaims.resource.k8s.io", subresource="status")
