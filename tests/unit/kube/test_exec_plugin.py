"""Programs that log a kubeconfig user in: what they get, what they may print, and when they run again."""

import asyncio
import base64
import json
import sys
from datetime import UTC, datetime

import pytest
import yaml

from hami_dra.api.errors import ConfigError
from hami_dra.kube.credentials import from_kubeconfig
from hami_dra.kube.exec_plugin import ExecIdentity, ExecPlugin
from tests.support.certificates import self_signed

V1 = "client.authentication.k8s.io/v1"
PROGRAM = """
import json, os, pathlib, sys
here = pathlib.Path(__file__).parent
runs = here / "runs"
number = len(runs.read_text().splitlines()) + 1 if runs.exists() else 1
with runs.open("a") as file:
    file.write(json.dumps({"info": json.loads(os.environ["KUBERNETES_EXEC_INFO"]), "args": sys.argv[1:], "own": os.environ.get("OWN")}) + "\\n")
print(os.environ["PRINTS"].replace("NUMBER", str(number)))
sys.exit(int(os.environ.get("EXITS", "0")))
"""


def credential(version=V1, **status):
    return json.dumps({"apiVersion": version, "kind": "ExecCredential", "status": status})


@pytest.fixture
def login(tmp_path):
    """Write a kubeconfig whose user runs PROGRAM, and read it."""
    (tmp_path / "program.py").write_text(PROGRAM)

    def login(prints, *, exits=0, cluster=None, **section):
        run = {
            "apiVersion": V1,
            "command": sys.executable,
            "args": [str(tmp_path / "program.py"), "get-token"],
            "env": [
                {"name": name, "value": value}
                for name, value in (("PRINTS", prints), ("EXITS", str(exits)), ("OWN", "x"))
            ],
            "interactiveMode": "Never",
            **section,
        }
        document = {
            "current-context": "main",
            "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": "https://api.example:6443", **(cluster or {})}}],
            "users": [{"name": "u", "user": {"exec": run}}],
        }
        (tmp_path / "config").write_text(yaml.safe_dump(document))
        return from_kubeconfig(str(tmp_path / "config"))

    return login


def runs(tmp_path):
    return [json.loads(line) for line in (tmp_path / "runs").read_text().splitlines()]


@pytest.mark.parametrize("version", [V1, "client.authentication.k8s.io/v1beta1"])
async def test_a_token_is_kept_until_it_is_refused(login, tmp_path, version):
    access = login(credential(version, token="s3cret-NUMBER"), apiVersion=version)
    assert await access.identity.header() == "Bearer s3cret-1"
    assert await access.identity.header() == "Bearer s3cret-1"
    assert await access.identity.header(renew=True) == "Bearer s3cret-2"
    assert "s3cret" not in repr(access)
    (first, _) = runs(tmp_path)
    assert first["info"] == {"kind": "ExecCredential", "apiVersion": version, "spec": {"interactive": False}}
    assert (first["args"], first["own"]) == (["get-token"], "x")


async def test_an_expired_token_is_renewed_once_for_all_that_wait(login, tmp_path):
    access = login(credential(token="s3cret-NUMBER", expirationTimestamp="2026-01-01T00:00:00Z"))
    plugin = access.identity._plugin
    now = datetime(2025, 12, 31, tzinfo=UTC)
    identity = ExecIdentity(plugin, clock=lambda: now)
    assert await identity.header() == "Bearer s3cret-2"
    assert await asyncio.gather(*(identity.header(renew=True) for _ in range(5))) == ["Bearer s3cret-3"] * 5
    now = datetime(2026, 1, 1, tzinfo=UTC)
    assert await identity.header() == "Bearer s3cret-4"
    assert len(runs(tmp_path)) == 4


async def test_a_client_certificate(login):
    certificate, key = self_signed()
    access = login(credential(clientCertificateData=certificate.decode(), clientKeyData=key.decode()))
    assert await access.identity.header() == ""
    assert access.tls is not None


def test_it_learns_of_the_cluster_where_it_asks_to(login, tmp_path):
    certificate, _ = self_signed()
    cluster = {
        "certificate-authority-data": base64.b64encode(certificate).decode(),
        "tls-server-name": "kubernetes",
        "extensions": [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}],
    }
    login(credential(token="t"), provideClusterInfo=True, cluster=cluster)
    assert runs(tmp_path)[0]["info"]["spec"]["cluster"] == {
        "server": "https://api.example:6443",
        "tls-server-name": "kubernetes",
        "certificate-authority-data": cluster["certificate-authority-data"],
        "config": {"audience": "a"},
    }


def test_a_program_beside_the_kubeconfig(login, tmp_path):
    script = tmp_path / "bin" / "login"
    script.parent.mkdir()
    script.write_text(f"#!/bin/sh\necho '{credential(token='t')}'\n")
    script.chmod(0o755)
    assert login("", command="./bin/login").identity.credential.token == "t"


@pytest.mark.parametrize(
    "prints",
    [
        "s3cret",
        "[]",
        credential(),
        credential(token=""),
        credential(token=["s3cret"]),
        credential(clientCertificateData="s3cret"),
        credential("client.authentication.k8s.io/v1beta1", token="s3cret"),
        credential(token="s3cret", expirationTimestamp="tomorrow"),
        credential(token="s3cret", expirationTimestamp="2026-01-01T00:00:00"),
    ],
)
def test_what_is_no_credential_is_not_quoted(login, prints):
    with pytest.raises(ConfigError, match=r"user 'u': the program .* printed no ExecCredential") as caught:
        login(prints)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "words"),
    [
        ({"exits": 3}, "failed with exit status 3"),
        (
            {"command": "hami-dra-no-such-program", "installHint": "Install it by hand."},
            "No such file.*\nInstall it by",
        ),
        ({"env": [{"name": "A"}]}, r"required field value - at u\.exec\.env\[0\]"),
        ({"command": ""}, "exec.command is empty"),
        ({"apiVersion": "client.authentication.k8s.io/v1alpha1"}, "'client.authentication.k8s.io/v1alpha1' is not sup"),
        ({"interactiveMode": "Always"}, "needs a terminal"),
    ],
)
def test_what_is_wrong_is_named(login, section, words):
    with pytest.raises(ConfigError, match=words):
        login(credential(token="t"), **section)


def test_a_program_says_nothing_of_its_arguments():
    plugin = ExecPlugin("u", V1, "aws", ("--secret", "s3cret"), {"KEY": "s3cret"}, "Never", "", {"server": "s3cret"})
    assert "s3cret" not in repr(plugin)
