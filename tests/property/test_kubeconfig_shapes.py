"""A kubeconfig of any shape is read, or refused with one sentence that names the file: no field of any type ends in another error."""

import contextlib
import copy

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.api.errors import ConfigError
from hami_dra.kube.credentials import cluster_title, default_namespace, from_kubeconfig
from hami_dra.kube.http import HttpCluster
from hami_dra.kube.kubeconfig import context_names
from tests.support.examples import examples

DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
SECRET = "s3cret-of-the-file"
EXEC = {
    "apiVersion": "client.authentication.k8s.io/v1",
    "command": "no-such-program-of-this-name",
    "args": ["a"],
    "env": [{"name": "A", "value": "b"}],
    "interactiveMode": "Never",
    "installHint": "x",
    "provideClusterInfo": True,
}
USERS = {
    "token": {
        "token": SECRET,
        "as": "jane",
        "as-uid": "1",
        "as-groups": ["g", "h"],
        "as-user-extra": {"k/é": ["v"]},
    },
    "tokenFile": {"tokenFile": "token"},
    "exec": {"exec": EXEC},
    "provider": {"auth-provider": {"name": "oidc", "config": {"id-token": SECRET}}},
    "basic": {"username": "u", "password": SECRET},
    "certificate": {"client-certificate": "token", "client-key-data": "c2VjcmV0"},
}
CLUSTER = {
    "server": "https://api.example:6443",
    "certificate-authority": "token",
    "insecure-skip-tls-verify": True,
    "tls-server-name": "x",
    "proxy-url": "http://proxy.example:3128",
    "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"a": 1}}],
}
LEAVES = (
    None, "", 5, 0, -1.5, True, False, [], {}, [5], [None], [["a"]], {"a": 5}, {5: "a"}, {"a": {"b": "c"}}, [{"name": 5}], "a\nb", "\n",
    "a b", "a\x00b", "é", "\ud800".encode("utf-16", "surrogatepass").hex(), "~nobody-of-this-name/x", "/", "https://", "http://[::1",
    "socks5://h:1", "h:99999", "http://h:99999", "%zz", "*" * 5000, "\x7f", b"\xff\xfe", float("nan"), 10**400,
)  # fmt: skip


def document(user):
    return {
        "current-context": "main",
        "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", "namespace": "n"}}],
        "clusters": [{"name": "c", "cluster": CLUSTER}],
        "users": [{"name": "u", "user": user}],
    }


def places(value, path=()):
    """The path of every value inside, the whole first."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*path, key))


def replaced(value, path, leaf):
    if not path:
        return leaf
    changed = copy.deepcopy(value)
    holder = changed
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = leaf
    return changed


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kubeconfig")
    (folder / "token").write_text("token-of-a-file\n")
    return folder


def written(value):
    return yaml.dump(value, Dumper=DUMPER, allow_unicode=True)


def check(folder, text, environment=None):
    """Use it in every way; what is wrong is a ConfigError without the secret, and no other error."""
    path = folder / "config"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))

    def connect():
        access = from_kubeconfig(str(path), environment=environment or {})
        HttpCluster(access)
        with contextlib.suppress(StopIteration):
            access.identity.header().send(None)  # no identity of a file waits for anything
        for name, value in access.impersonation:
            assert (name + value).isprintable()

    for use in (
        connect,
        lambda: cluster_title(str(path)),
        lambda: default_namespace(str(path)),
        lambda: context_names(str(path)),
    ):
        assert SECRET not in said_by(use)


def said_by(use):
    try:
        use()
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", USERS)
def test_every_field_of_every_wrong_type(folder, kind):
    whole = document(USERS[kind])
    for path in places(whole):
        if kind != "token" and path[:1] != ("users",):
            continue  # the rest is the same for all kinds of users
        for leaf in LEAVES:
            check(folder, written(replaced(whole, path, leaf)))


@settings(max_examples=examples(150), deadline=None)
@given(st.data())
def test_several_fields_at_once(folder, data):
    whole = document(data.draw(st.sampled_from(list(USERS.values()))))
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(list(places(whole))))
        whole = replaced(whole, path, data.draw(st.sampled_from(LEAVES) | st.text(max_size=5) | st.integers()))
        if not isinstance(whole, dict):
            break
    check(folder, written(whole))


@settings(max_examples=examples(100), deadline=None)
@given(st.binary(max_size=40) | st.text("[]{}:-&*!?|>'\"%@,\n ab01", max_size=40).map(str.encode))
def test_any_bytes(folder, data):
    check(folder, data)


@pytest.mark.parametrize(
    "text",
    [
        "users: &a [*a]",
        "contexts: &c\n- {name: main, context: &x {cluster: c, user: u, deep: *x}}\ncurrent-context: main",
        "[" * 3000,
        "current-context: 2020-13-45",
        "current-context: 0x" + "f" * 9000,
        "? [a]\n: b",
        "a: 1e99999",
    ],
)
def test_what_yaml_can_be_made_to_do(folder, text):
    check(folder, text)


@pytest.mark.parametrize("value", LEAVES)
def test_environment_of_a_proxy(folder, value):
    if isinstance(value, str):
        text = written(document(USERS["token"]))
        check(folder, text.replace("proxy-url", "x-proxy-url"), {"HTTPS_PROXY": value, "NO_PROXY": value})
