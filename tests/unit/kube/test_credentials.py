"""Kubeconfig files and service accounts: what is read, in which order, and that no secret is ever told."""

import base64
import ssl

import pytest
import yaml

from hami_dra.api.errors import ConfigError
from hami_dra.kube import credentials
from hami_dra.kube.credentials import TokenFile, from_kubeconfig, in_cluster, is_in_cluster
from hami_dra.kube.http import connect
from tests.support.certificates import self_signed


@pytest.fixture
def pair():
    return self_signed()


@pytest.fixture
def write(tmp_path):
    def write(user, cluster=None, *, name="config", context=None, current="main"):
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": current,
            "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u", **(context or {})}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443/", **(cluster or {})}}],
            "users": [{"name": "u", "user": user}],
        }
        path = tmp_path / name
        path.write_text(yaml.safe_dump(document))
        return str(path)

    return write


def encoded(data):
    return base64.b64encode(data).decode()


async def test_a_token(write):
    access = from_kubeconfig(write({"token": "s3cret"}, context={"namespace": "team"}))
    assert await access.identity.header() == "Bearer s3cret"
    assert access.server == "https://api.example:6443"
    assert access.namespace == "team"
    assert access.tls.verify_mode == ssl.CERT_REQUIRED
    assert "s3cret" not in repr(access)


async def test_a_token_file_beside_the_kubeconfig_is_read_again(write, tmp_path):
    (tmp_path / "token").write_text("one\n")
    access = from_kubeconfig(write({"tokenFile": "token"}))
    assert await access.identity.header() == "Bearer one"
    (tmp_path / "token").write_text("two\n")
    assert await access.identity.header() == "Bearer one"
    assert await access.identity.header(renew=True) == "Bearer two"
    assert "two" not in repr(access)


async def test_a_token_file_is_read_once_a_minute_and_may_be_missing_for_a_moment(tmp_path):
    now = 0.0
    path = tmp_path / "token"
    path.write_text("one")
    identity = TokenFile(path, clock=lambda: now)
    assert await identity.header() == "Bearer one"
    path.write_text("two")
    now = 59.0
    assert await identity.header() == "Bearer one"
    now = 60.0
    assert await identity.header() == "Bearer two"
    path.unlink()
    now = 120.0
    assert await identity.header() == "Bearer two"
    with pytest.raises(ConfigError, match="token"):
        await TokenFile(path).header()


async def test_user_and_password(write):
    access = from_kubeconfig(write({"username": "me", "password": "s3cret"}))
    assert await access.identity.header() == "Basic " + encoded(b"me:s3cret")


async def test_client_certificates_as_data_and_as_files(write, tmp_path, pair):
    certificate, key = pair
    data = {"client-certificate-data": encoded(certificate), "client-key-data": encoded(key)}
    access = from_kubeconfig(write(data, {"certificate-authority-data": encoded(certificate)}))
    assert [authority["serialNumber"] for authority in access.tls.get_ca_certs()] == ["01"]
    assert await access.identity.header() == ""
    (tmp_path / "tls.crt").write_bytes(certificate)
    (tmp_path / "tls.key").write_bytes(key)
    files = {"client-certificate": "tls.crt", "client-key": "tls.key"}
    from_kubeconfig(write(files, {"certificate-authority": "tls.crt"}))


def test_verification_can_be_switched_off_and_the_server_named(write):
    cluster = {
        "insecure-skip-tls-verify": True,
        "tls-server-name": "kubernetes",
        "proxy-url": "http://u:s3cret@proxy:1",
    }
    access = from_kubeconfig(write({}, cluster))
    assert access.tls.verify_mode == ssl.CERT_NONE
    assert access.server_name == "kubernetes"
    assert access.proxy == "http://u:s3cret@proxy:1"
    assert "s3cret" not in repr(access)


def test_a_user_who_acts_as_another_does(write):
    user = {
        "token": "t",
        "as": "jane",
        "as-uid": "7",
        "as-groups": ["g", "h"],
        "as-user-extra": {"a.b/c d": ["x", "y"]},
    }
    assert from_kubeconfig(write(user)).impersonation == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "g"),
        ("Impersonate-Group", "h"),
        ("Impersonate-Extra-a.b%2Fc%20d", "x"),
        ("Impersonate-Extra-a.b%2Fc%20d", "y"),
    )
    with pytest.raises(ConfigError, match="need a user to act as"):
        from_kubeconfig(write({"token": "t", "as-groups": ["g"]}))


@pytest.mark.parametrize("scheme", ["socks5", "socks5h", "SOCKS4"])
def test_a_socks_proxy_is_refused_by_name(write, scheme):
    url = f"{scheme}://u:s3cret@proxy:1"
    with pytest.raises(ConfigError, match=f"proxy-url: a {scheme.lower()} proxy is not supported") as caught:
        from_kubeconfig(write({}, {"proxy-url": url}))
    assert "s3cret" not in str(caught.value)
    with pytest.raises(ConfigError, match=f"HTTPS_PROXY: a {scheme.lower()} proxy"):
        from_kubeconfig(write({}), environment={"HTTPS_PROXY": url})


@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        ("https://api.example:6443", {"HTTPS_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.example:6443", {"https_proxy": "p:1"}, "http://p:1"),
        ("https://api.example:6443", {"HTTP_PROXY": "http://p:1"}, ""),
        ("http://api.example:6443", {"HTTP_PROXY": "http://p:1"}, "http://p:1"),
        ("https://api.example:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "example"}, ""),
        ("https://api.example:6443", {"HTTPS_PROXY": "http://p:1", "no_proxy": "a, *.example"}, ""),
        ("https://api.example:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "xample"}, "http://p:1"),
        ("https://api.example:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "api.example:443"}, "http://p:1"),
        ("https://[fd00::1]:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "fd00::/8"}, ""),
        ("https://[fd00::1]:6443", {"HTTPS_PROXY": "http://p:1", "NO_PROXY": "[fd00::1]:6443"}, ""),
        ("https://127.0.0.2:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
        ("https://localhost:6443", {"HTTPS_PROXY": "http://p:1"}, ""),
    ],
)
def test_proxies_of_the_environment_are_those_of_kubectl(write, server, environment, proxy):
    assert from_kubeconfig(write({}, {"server": server}), environment=environment).proxy == proxy
    own = {"server": server, "proxy-url": "http://own:2"}
    assert from_kubeconfig(write({}, own), environment=environment).proxy == "http://own:2"
    assert from_kubeconfig(write({}, {"server": server, "proxy-url": None}), environment=environment).proxy == proxy


def test_half_a_client_certificate_is_refused(write, pair):
    for name, data in zip(("certificate", "key"), pair, strict=True):
        with pytest.raises(ConfigError, match="needs client-certificate and client-key"):
            from_kubeconfig(write({f"client-{name}-data": encoded(data)}))


def test_a_token_with_a_line_break_at_its_end_counts_without(write):
    assert from_kubeconfig(write({"token": "s3cret\n"})).identity.value == "Bearer s3cret"


def test_plain_http_needs_no_certificates(write):
    assert from_kubeconfig(write({}, {"server": "http://localhost:8080"})).tls is None


async def test_several_files_are_merged_and_the_first_wins(write, tmp_path):
    first = write({"token": "first"}, name="first")
    second = write({"token": "second"}, {"server": "https://other"}, name="second", current="")
    missing = str(tmp_path / "missing")
    access = from_kubeconfig(None, environment={"KUBECONFIG": f"{missing}:{first}:{second}"})
    assert access.server == "https://api.example:6443"
    assert await access.identity.header() == "Bearer first"


async def test_the_token_that_kubectl_stored_for_an_oidc_user(write):
    access = from_kubeconfig(write({"auth-provider": {"name": "oidc", "config": {"id-token": "s3cret"}}}))
    assert await access.identity.header() == "Bearer s3cret"
    for provider in (
        {"name": "gcp"},
        {"name": "oidc", "config": {}},
        {"name": "azure", "config": {"x": "y"}},
        {"config": {"x": "y"}},
    ):
        with pytest.raises(ConfigError, match=r"user 'u': auth-provider.* use an exec plugin"):
            from_kubeconfig(write({"auth-provider": provider}))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"user": {"client-certificate-data": "s3cret!"}}, "client-certificate-data is not base64"),
        ({"user": {"client-certificate": "nowhere.crt"}}, r"client-certificate .*nowhere\.crt"),
        (
            {"user": {"client-certificate-data": encoded(b"s3cret"), "client-key-data": encoded(b"s3cret")}},
            "TLS",
        ),
        ({"user": {}, "cluster": {"certificate-authority-data": encoded(b"s3cret")}}, "TLS"),
        ({"user": {}, "cluster": {"server": ""}}, "has no server"),
        ({"user": {}, "context": {"cluster": "other"}}, "'other' is not among its clusters: c"),
        ({"user": {}, "context": {"user": "other"}}, "'other' is not among its users: u"),
        ({"user": {}, "current": "other"}, "'other' is not among its contexts: main"),
        ({"user": {}, "current": ""}, "no current-context"),
    ],
    ids=["base64", "file", "pair", "authority", "server", "cluster", "user", "context", "none"],
)
def test_what_is_wrong_is_named_without_a_secret(write, options, words):
    with pytest.raises(ConfigError, match=words) as caught:
        from_kubeconfig(write(**options))
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("text", ["{token: s3cret", "just s3cret text", "\x80"])
def test_a_file_that_is_no_kubeconfig(tmp_path, text):
    path = tmp_path / "config"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(ConfigError, match="not a") as caught:
        from_kubeconfig(str(path))
    assert "s3cret" not in str(caught.value)


def test_no_file_at_all(tmp_path):
    with pytest.raises(ConfigError, match="set --kubeconfig"):
        from_kubeconfig(str(tmp_path / "missing"))
    with pytest.raises(ConfigError, match="none of"):
        from_kubeconfig(None, environment={"KUBECONFIG": f"{tmp_path}/a:{tmp_path}/b"})


async def test_inside_a_pod(tmp_path, pair):
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}
    assert is_in_cluster(environment)
    with pytest.raises(ConfigError, match="automountServiceAccountToken"):
        in_cluster(tmp_path, environment)
    (tmp_path / "token").write_text("s3cret")
    (tmp_path / "ca.crt").write_bytes(pair[0])
    (tmp_path / "namespace").write_text("hami-system")
    access = in_cluster(tmp_path, environment)
    assert access.server == "https://[fd00::1]:443"
    assert access.namespace == "hami-system"
    assert await access.identity.header() == "Bearer s3cret"
    with pytest.raises(ConfigError, match="use --kubeconfig"):
        in_cluster(tmp_path, {})


def test_a_named_kubeconfig_comes_before_the_pods_account(write, monkeypatch, tmp_path):
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    monkeypatch.setattr(credentials, "SERVICE_ACCOUNT", tmp_path / "nothing")
    assert connect(write({}, context={"namespace": "named"})).namespace == "named"
    with pytest.raises(ConfigError, match="automount"):
        connect()
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST")
    monkeypatch.setenv("KUBECONFIG", write({}, context={"namespace": "environment"}))
    assert connect().namespace == "environment"
