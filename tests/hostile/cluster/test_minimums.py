"""L2: a minimum for one namespace is a DeviceClass with a minimum, and Kubernetes' quota of 0 for the classes without one."""

import json
import secrets

from tests.e2e.objects import claim, device_class, part
from tests.hostile.cluster.tenant import CLAIMS, Tenant


def test_a_quota_of_zero_keeps_a_namespace_from_classes_without_a_minimum(control_plane, api):
    name = secrets.token_hex(4)
    namespace, lax, strict = f"evil-{name}", f"lax-{name}", f"strict-{name}"
    quota = {"metadata": {"name": "classes"}, "spec": {"hard": {f"{lax}.deviceclass.resource.k8s.io/devices": "0"}}}
    classes = "/apis/resource.k8s.io/v1/deviceclasses"
    quotas = f"/api/v1/namespaces/{namespace}/resourcequotas"
    api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    for each in (lax, strict):
        api.create(classes, device_class(each, "true"))
    api.create(quotas, quota)
    api.wait_for("the quota in force", lambda: api.get(f"{quotas}/classes").get("status", {}).get("hard"))
    mallory = Tenant(control_plane, namespace)
    try:

        def asks(each):
            request = part("1Mi", "0")
            request["exactly"]["deviceClassName"] = each
            body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim(each, request)}
            return mallory.send("POST", CLAIMS.format(namespace), json.dumps(body).encode())

        assert asks(lax) == 403
        assert asks(strict) < 300
    finally:
        mallory.close()
        api.delete(f"/api/v1/namespaces/{namespace}")
        for each in (lax, strict):
            api.delete(f"{classes}/{each}")
