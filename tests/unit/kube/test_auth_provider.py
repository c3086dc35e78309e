"""Users who log in with an auth-provider: tokens are renewed by the official client, once, and kept where kubectl finds them."""

import asyncio
import base64
import json
import socket
import sys
import time
from pathlib import Path

import pytest
import yaml

from hami_dra.api.errors import ConfigError
from hami_dra.kube import auth_provider
from hami_dra.kube.credentials import from_kubeconfig
from tests.support.identity_provider import IdentityProvider, encoded


@pytest.fixture
def provider(tmp_path):
    with IdentityProvider(tmp_path) as running:
        yield running


@pytest.fixture
def write(tmp_path):
    def write(user, name="config"):
        document = {
            "current-context": "main",
            "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443"}}],
            "users": [{"name": "u", "user": user}],
        }
        path = tmp_path / name
        path.write_text(yaml.safe_dump(document))
        return str(path)

    return write


def stored(path):
    [user] = yaml.safe_load(Path(path).read_text())["users"]
    return user["user"]["auth-provider"]["config"]


def expires(header):
    payload = header.removeprefix("Bearer ").split(".")[1]
    return json.loads(base64.urlsafe_b64decode(payload + "=="))["exp"]


async def test_an_expired_token_is_renewed_and_written_where_kubectl_finds_it(provider, write):
    path = write(provider.user())
    before = stored(path)
    access = from_kubeconfig(path)
    header = await access.identity.header()
    assert expires(header) > time.time()
    assert provider.refreshed == ["refresh-0"]
    assert stored(path) == {**before, "id-token": header.removeprefix("Bearer "), "refresh-token": "refresh-1"}
    assert header not in repr(access)
    assert await access.identity.header() == header
    assert len(provider.refreshed) == 1


async def test_a_token_that_the_server_refuses_is_renewed_with_the_latest_refresh_token(provider, write):
    path = write(provider.user())
    access = from_kubeconfig(path)
    first = await access.identity.header()
    second = await access.identity.header(renew=True)
    assert provider.refreshed == ["refresh-0", "refresh-1"]
    assert second == f"Bearer {stored(path)['id-token']}"
    third = provider.id_token(7200)
    write(provider.user(**{"id-token": third}))
    assert await access.identity.header(renew=True) == f"Bearer {third}", "kubectl was faster"
    assert len(provider.refreshed) == 2
    assert first


async def test_several_requests_at_once_renew_once(provider, write):
    access = from_kubeconfig(write(provider.user(**{"id-token": provider.id_token(1200)})))
    access.identity._clock = lambda: time.time() + 1800
    headers = await asyncio.gather(*[access.identity.header() for _ in range(5)])
    assert len({*headers}) == 1
    assert provider.refreshed == ["refresh-0"]


async def test_a_token_that_has_not_expired_needs_no_official_client(provider, write, monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes.config.kube_config", None)
    valid = provider.id_token()
    access = from_kubeconfig(write(provider.user(**{"id-token": valid})))
    assert await access.identity.header() == f"Bearer {valid}"
    opaque = from_kubeconfig(write({"auth-provider": {"name": "oidc", "config": {"id-token": "s3cret"}}}, "opaque"))
    assert await opaque.identity.header() == "Bearer s3cret"
    with pytest.raises(ConfigError, match=r"needs the extra 'auth-provider'.*pip install .*; or use an exec plugin"):
        from_kubeconfig(write(provider.user(), "expired"))


async def test_gcp_runs_the_program_that_the_user_names(write, tmp_path):
    program = tmp_path / "login"
    answer = {"credential": {"access_token": "from-gcp", "token_expiry": "2099-01-01T00:00:00Z"}}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(answer)}'\n")
    program.chmod(0o755)
    config = {
        "cmd-path": str(program),
        "cmd-args": "x",
        "token-key": "{.credential.access_token}",
        "expiry-key": "{.credential.token_expiry}",
    }
    access = from_kubeconfig(write({"auth-provider": {"name": "gcp", "config": config}}))
    assert await access.identity.header() == "Bearer from-gcp"


async def test_a_program_of_gcp_is_run_again_when_its_token_was_refused(write, tmp_path):
    program = tmp_path / "login"
    answer = '{"credential": {"access_token": "token-%s", "token_expiry": "2099-01-01T00:00:00Z"}}'
    program.write_text(f"#!/bin/sh\necho x >> {tmp_path}/runs\nprintf '{answer}' $(wc -l < {tmp_path}/runs)\n")
    program.chmod(0o755)
    config = {"cmd-path": str(program), "cmd-args": "x", "token-key": "x", "expiry-key": "x"}
    access = from_kubeconfig(write({"auth-provider": {"name": "gcp", "config": config}}))
    assert await access.identity.header() == "Bearer token-1"
    assert await access.identity.header() == "Bearer token-1"
    assert await access.identity.header(renew=True) == "Bearer token-2"


async def test_a_provider_that_never_answers_ends_nothing(write, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(auth_provider, "PATIENCE", 0.2)
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        user = {"idp-issuer-url": url, "client-id": "c", "refresh-token": "s3cret", "id-token": "a.eyJleHAiOjB9.b"}
        with pytest.raises(ConfigError, match=rf"no new token within 0.2 s; is {url} up\?"):
            from_kubeconfig(write({"auth-provider": {"name": "oidc", "config": user}}))


async def test_what_yaml_leaves_empty_is_no_token(provider, write, tmp_path, monkeypatch):
    empty = tmp_path / "empty"
    empty.write_text("# nothing\n")
    path = write(
        {"auth-provider": {"name": "oidc", "config": {**provider.user()["auth-provider"]["config"], "id-token": None}}}
    )
    access = from_kubeconfig(None, environment={"KUBECONFIG": f"{empty}:{path}"})
    assert expires(await access.identity.header()) > time.time()
    huge = f"{encoded({})}.{encoded({'exp': 10**400})}.x"
    opaque = from_kubeconfig(write(provider.user(**{"id-token": huge}), "huge"))
    assert await opaque.identity.header() == f"Bearer {huge}"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"refresh-token": None}, "no refresh-token to get one; use an exec plugin"),
        ({"client-id": None}, "no client-id to get one"),
        ({"refresh-token": "s3cret-used"}, "refuses the login"),
        ({"idp-certificate-authority-data": None}, "is not trusted"),
        ({"idp-issuer-url": "https://localhost:1"}, "https://localhost:1 cannot be reached"),
        ({"id-token": None, "refresh-token": None}, "no refresh-token"),
    ],
)
def test_what_is_wrong_is_named_and_no_secret_is(provider, write, change, words):
    path = write(provider.user(**change))
    before = Path(path).read_text()
    with pytest.raises(ConfigError, match=f"user 'u': auth-provider.*{words}") as caught:
        from_kubeconfig(path)
    assert Path(path).read_text() == before
    for secret in ("s3cret", "refresh-0", encoded({"alg": "RS256"})[:8]):
        assert secret not in str(caught.value)
