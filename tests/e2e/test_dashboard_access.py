"""Who may look at the page is decided by a real API server: its tokens, its RBAC, our shipped roles."""

import http.client
import json
from urllib.parse import unquote

import pytest

from hack.controlplane.processes import free_port
from hack.installation import QUICK

RBAC_OF = "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings"
RBAC = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"


@pytest.fixture(scope="module")
def page(make_installation):
    """The port of the page of a controller that runs under its own ServiceAccount."""
    hami = make_installation()
    port = free_port()
    hami.start_controller(*QUICK, f"--dashboard-bind=127.0.0.1:{port}")
    hami.wait_ready()
    return port


def ask(port, path, token="", **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    if token:
        headers["Authorization"] = f"Bearer {token}"
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


@pytest.fixture
def account(api, namespace):
    """`account(name, role)`: the token of a new ServiceAccount, bound to the ClusterRole where one is named."""
    bindings = []

    def make(name, role="", *, cluster_wide=True):
        api.create(f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        if role:
            subject = {"kind": "ServiceAccount", "name": name, "namespace": namespace}
            role_ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role}
            body = {"metadata": {"name": f"{namespace}-{name}"}, "roleRef": role_ref, "subjects": [subject]}
            api.create(RBAC if cluster_wide else RBAC_OF.format(namespace), body)
            if cluster_wide:
                bindings.append(body["metadata"]["name"])
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
        return api.create(path, body)["status"]["token"]

    yield make
    for name in bindings:
        api.delete(f"{RBAC}/{name}")


@pytest.mark.on_1_36
def test_the_cluster_decides_who_may_look(page, account, api, namespace):
    viewer, stranger = account("viewer", "hami-dra-viewer"), account("stranger")
    api.wait_for("the page", lambda: ask(page, "/login")[0] == 200)
    # RBAC learns of a new binding from a watch; a refusal is kept for seconds
    api.wait_for("the viewer let in", lambda: ask(page, "/", viewer)[0] == 200, every=1.0)
    status, headers, body = ask(page, "/", viewer)
    assert (status, "hami-dra" in body, headers["Cache-Control"]) == (200, True, "no-store")
    assert ask(page, "/", Cookie=f"hami_dra_token={viewer}")[0] == 200
    status, _, body = ask(page, "/api/v1/explanations", viewer)
    assert (status, json.loads(body)) == (200, [])

    assert ask(page, "/", stranger)[0] == ask(page, "/api/v1/explanations", stranger)[0] == 403

    # bound in its namespace alone: the pages are there, a simulation of the whole cluster is not
    member = account("member", "hami-dra-viewer", cluster_wide=False)
    api.wait_for("the member let in", lambda: ask(page, "/pods", member)[0] == 200, every=1.0)
    assert f"You see the workloads of {namespace} only; what others hold is gray." in ask(page, "/pods", member)[2]
    assert ask(page, "/whatif", member)[0] == 403
    assert ask(page, "/whatif", viewer)[0] == 200

    for token in ("", "no-such-token", f"{viewer[:-6]}AAAAAA"):
        status, headers, _ = ask(page, "/nodes?q=x", token)
        assert (status, unquote(headers["Location"])) == (303, "/login?next=/nodes?q=x")
        assert ask(page, "/api/v1/explanations", token)[0] == ask(page, "/events", token)[0] == 401
