"""`hami-dra uninstall` as it is typed: what it would remove, its question on a terminal, and without one."""

import asyncio
import os
import pty
from contextlib import suppress

import pytest

from controller.reconcile.repair import uninstall
from hami_dra.api import kinds, names
from hami_dra.kube.memory import MemoryCluster
from hami_dra.kube.protocol import Forbidden
from tests.support.commands import Typed

LISTED = ["an uninstall removes:", f"  MutatingWebhookConfiguration {names.WEBHOOK}"]


class Cluster(MemoryCluster):
    async def close(self):
        """Stay: the command connects more than once, and the test looks at it afterwards."""

    def has_webhook(self):
        return bool(asyncio.run(self.list(kinds.MUTATING_WEBHOOK)).items)


@pytest.fixture
def cluster(monkeypatch):
    cluster = Cluster()
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
    assert hami_dra("uninstall", "--dry-run").stdout == "nothing of hami-dra is left in this cluster\n"


@pytest.mark.parametrize(("answer", "end"), [(b"n\n", (1, "nothing was removed")), (b"y\n", (0, "done: "))])
def test_on_a_terminal_it_lists_and_asks(hami_dra, cluster, terminal, answer, end):
    code, text = terminal(hami_dra, answer, "uninstall")
    assert text.index(LISTED[1]) < text.index("Remove all of this? [y/N]") < text.index(end[1])
    assert (code, cluster.has_webhook()) == (end[0], code == 1)


def test_yes_asks_nothing(hami_dra, cluster, terminal):
    ended, text = terminal(hami_dra, b"", "uninstall", "--yes")
    assert (ended, "Remove all" in text, cluster.has_webhook()) == (0, False, False)


def test_in_a_script_it_asks_nothing(hami_dra, cluster):
    assert "MutatingWebhookConfiguration hami-dra-webhook deleted" in hami_dra("uninstall").stdout
    assert not cluster.has_webhook()
