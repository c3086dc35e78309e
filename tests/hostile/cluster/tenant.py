"""Mallory: a ServiceAccount with Kubernetes' default `edit` role in one namespace, who may send any bytes.

Nothing here knows the product. What mallory may do is what `system:aggregate-to-edit` grants: pods, claims and templates of
the namespace, neither their status nor anything of another namespace.
"""

import contextlib
import secrets
from pathlib import Path

from hack.controlplane.api import Api, ApiError

PODS = "/api/v1/namespaces/{}/pods"
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaims"
TEMPLATES = "/apis/resource.k8s.io/v1/namespaces/{}/resourceclaimtemplates"


class Tenant:
    """`api` is mallory's own client; `namespace` is where mallory has rights."""

    def __init__(self, plane, namespace):
        self.namespace = namespace
        self.name = f"mallory-{secrets.token_hex(3)}"
        self._admin = plane.api
        accounts = f"/api/v1/namespaces/{namespace}/serviceaccounts"
        self._admin.create(accounts, {"metadata": {"name": self.name}})
        self._admin.create(
            f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings",
            {
                "metadata": {"name": self.name},
                "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
                "subjects": [{"kind": "ServiceAccount", "name": self.name, "namespace": namespace}],
            },
        )
        request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
        token = self._admin.create(f"{accounts}/{self.name}/token", request)["status"]["token"]
        self.api = Api(plane.url, Path(plane.ca_file), token)
        # RBAC reads role bindings from a watch: it may be some milliseconds behind
        self._admin.wait_for("mallory's rights", lambda: self.may("create", "pods"), seconds=30)

    def pods(self):
        return PODS.format(self.namespace)

    def claims(self):
        return CLAIMS.format(self.namespace)

    def templates(self):
        return TEMPLATES.format(self.namespace)

    def send(self, method, path, body, content_type="application/json"):
        """Sends bytes as they are. Returns the HTTP status; the answer is not read, as it may be no JSON to Python."""
        try:
            self.api._raw(method, path, body, content_type)
        except ApiError as error:
            return error.status
        return 200

    def may(self, verb, resource, *, namespace="", subresource=""):
        """`resource` is `plural` or `plural.group`. Answered by the API server (SelfSubjectAccessReview)."""
        plural, _, group = resource.partition(".")
        attributes = {
            "namespace": namespace or self.namespace,
            "verb": verb,
            "group": group,
            "resource": plural,
            "subresource": subresource,
        }
        review = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview"}
        path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
        return bool(self.api.create(path, {**review, "spec": {"resourceAttributes": attributes}})["status"]["allowed"])

    def close(self):
        """The namespace takes account and binding with it; connections do not close themselves."""
        with contextlib.suppress(OSError):
            self.api.close()
