"""`hami-dra uninstall` as it is typed: what it would remove, its question on a terminal, and without one."""

import asyncio
import json
import os
import pty
from contextlib import suppress

import pytest

from controller.reconcile.repair import uninstall
from hami_dra.api import kinds, names
from hami_dra.kube.embedded import MemoryCluster
from hami_dra.kube.protocol import Forbidden
from tests.support.commands import Typed

SERVER = "https://api.example:6443"
CLUSTER = f"cluster: context prod, {SERVER}"
LISTED = [CLUSTER, "an uninstall removes:", f"  MutatingWebhookConfiguration {names.WEBHOOK}"]


class Cluster(MemoryCluster):
    async def close(self):
        """Stay: the command connects more than once, and the test looks at it afterwards."""

    def has_webhook(self):
        return bool(asyncio.run(self.list(kinds.MUTATING_WEBHOOK)).items)


@pytest.fixture
def cluster(monkeypatch, tmp_path):
    cluster = Cluster()
    config = {
        "current-context": "prod",
        "contexts": [{"name": "prod", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": SERVER}}],
    }
    (tmp_path / "config").write_text(json.dumps(config))
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
    asyncio.run(cluster.create(kinds.MUTATING_WEBHOOK, {"metadata": {"name": names.WEBHOOK}}))
    monkeypatch.setattr("hami_dra.kube.http.connect", lambda *_: cluster)
    monkeypatch.setattr(uninstall, "_POLICY_LAG", 0.0)
    return cluster


@pytest.fixture
def hami_dra(capsys):
    return Typed(capsys)


@pytest.fixture
def terminal(monkeypatch):
    """Type an answer on a terminal that is stdin and stdout, run a command, and return its exit status and what it printed."""
    ours, theirs = pty.openpty()
    os.set_blocking(ours, False)
    stream = os.fdopen(theirs, "r+b", buffering=0)

    def on_terminal(hami_dra, answer, *words):
        os.write(ours, answer)
        with open(theirs, "w", closefd=False) as out, open(theirs, closefd=False) as typed:
            monkeypatch.setattr("sys.stdin", typed)
            monkeypatch.setattr("sys.stdout", out)
            code = hami_dra(*words).code
        printed = b""
        with suppress(BlockingIOError):
            while True:
                printed += os.read(ours, 65536)
        return code, printed.decode()

    yield on_terminal
    stream.close()
    os.close(ours)


def test_a_dry_run_lists_and_removes_nothing(hami_dra, cluster):
    assert hami_dra("uninstall", "--dry-run").stdout.splitlines() == LISTED
    assert cluster.has_webhook()


def test_what_it_may_remove_but_not_read_is_listed_with_an_if(hami_dra, cluster, monkeypatch):
    async def get(kind, name, namespace):
        raise Forbidden(f"get {kind.name} {namespace}/{name}")

    monkeypatch.setattr(cluster, "get", get)
    listed = hami_dra("uninstall", "--dry-run").stdout.splitlines()
    assert f"  Secret {names.SYSTEM_NAMESPACE}/{names.WEBHOOK_SECRET}, if it is there" in listed


def test_with_nothing_there_a_dry_run_says_so(hami_dra, cluster):
    asyncio.run(cluster.delete(kinds.MUTATING_WEBHOOK, names.WEBHOOK))
    assert hami_dra("uninstall", "--dry-run").stdout == f"{CLUSTER}\nnothing of hami-dra is left in this cluster\n"


@pytest.mark.parametrize(("answer", "end"), [(b"n\n", (1, "nothing was removed")), (b"y\n", (0, "done: "))])
def test_on_a_terminal_it_lists_and_asks(hami_dra, cluster, terminal, answer, end):
    code, text = terminal(hami_dra, answer, "uninstall")
    assert text.index(CLUSTER) < text.index(LISTED[2]) < text.index("Remove all of this? [y/N]") < text.index(end[1])
    assert (code, cluster.has_webhook()) == (end[0], code == 1)


def test_yes_asks_nothing(hami_dra, cluster, terminal):
    ended, text = terminal(hami_dra, b"", "uninstall", "--yes")
    assert (ended, "Remove all" in text, cluster.has_webhook()) == (0, False, False)


def test_without_a_terminal_nothing_is_removed_unless_yes_is_given(hami_dra, cluster):
    refused = hami_dra("uninstall")
    assert refused.code == 2
    assert "hami-dra uninstall --yes" in refused.stderr
    assert cluster.has_webhook()
    done = hami_dra("uninstall", "--yes").stdout
    assert done.startswith(CLUSTER)
    assert "MutatingWebhookConfiguration hami-dra-webhook deleted" in done
    assert not cluster.has_webhook()


@pytest.mark.parametrize("piped", ["stdin", "stdout"])
def test_with_one_of_both_no_terminal_it_needs_yes_too(hami_dra, cluster, monkeypatch, piped):
    """As in `hami-dra uninstall | tee log`."""
    for name in ("stdin", "stdout"):
        monkeypatch.setattr(f"sys.{name}.isatty", lambda name=name: name != piped, raising=False)
    assert hami_dra("uninstall").code == 2
    assert cluster.has_webhook()


@pytest.mark.parametrize("words", [("--dry-run",), ("--yes",)])
def test_an_installation_in_another_namespace_is_named_and_stays(hami_dra, cluster, words):
    lease = {"metadata": {"name": names.CONTROLLER, "namespace": "gpus"}, "spec": {"holderIdentity": "one"}}
    asyncio.run(cluster.create(kinds.LEASE, lease, namespace="gpus"))
    ended = hami_dra("uninstall", *words)
    assert ended.code == 2
    assert "hami-dra runs in namespace gpus: --install-namespace gpus" in ended.stderr
    assert cluster.has_webhook()
    assert hami_dra("uninstall", "--dry-run", "--install-namespace", "gpus").code == 0


def test_gates_only_removes_the_gate_policy_and_nothing_else(hami_dra, cluster):
    for name in (names.GATE_POLICY, names.PROTECT_POLICY):
        asyncio.run(cluster.create(kinds.MUTATING_POLICY, {"metadata": {"name": name}}))
    assert hami_dra("uninstall", "--gates-only", "--dry-run").stdout.splitlines()[1:] == [
        "this removes:",
        f"  MutatingAdmissionPolicy {names.GATE_POLICY}",
    ]
    done = hami_dra("uninstall", "--gates-only", "--yes").stdout
    assert "the fence and all other policies stay" in done
    left = asyncio.run(cluster.list(kinds.MUTATING_POLICY)).items
    assert [each.metadata.name for each in left] == [names.PROTECT_POLICY]
    assert cluster.has_webhook()
