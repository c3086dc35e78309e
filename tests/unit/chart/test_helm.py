"""Helm for the tests of the chart is built once, from pinned modules; a stand-in for Go shows how."""

import re

import pytest

from hack.controlplane.build import BuildError
from hack.helm import helm


@pytest.fixture
def go(tmp_path, monkeypatch):
    """`go(body)`: a shell script in place of Go; `$out` is what it shall make. The cache is the test's own."""
    monkeypatch.setenv("HAMI_DRA_CACHE", str(tmp_path / "cache"))

    def make(body):
        program = tmp_path / "go"
        program.write_text(
            '#!/bin/sh\n[ "$1" = env ] && { echo go1.27.3; exit; }\n'
            f'while [ "$1" != -o ]; do shift; done\nout=$2 package=$3\n{body}\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    return make


def test_built_once(go):
    go('echo "$package" > "$out"')
    built = helm.ensure()
    go("exit 1")
    assert helm.ensure() == built
    assert built.read_text() == "helm.sh/helm/v4/cmd/helm\n"


def test_a_failed_build_leaves_nothing_and_says_what_go_said(go):
    go('echo half > "$out"; echo "no such host" >&2; exit 1')
    with pytest.raises(BuildError, match=r"Helm cannot be built \(it needs a Go module proxy\):\nno such host"):
        helm.ensure()
    assert not helm.binary().exists()
    assert list(helm.binary().parent.iterdir()) == []


def test_its_version_is_pinned():
    text = (helm.HERE / "go.mod").read_text()
    assert re.search(r"^\thelm\.sh/helm/v4 v4\.\d+\.\d+", text, re.MULTILINE)
    assert "tool helm.sh/helm/v4/cmd/helm" in text
