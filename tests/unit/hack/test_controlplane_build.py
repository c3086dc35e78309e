"""hack/controlplane/build.py with a fake `go`: what is cached, what is said when it cannot be built."""

import io
import stat
import threading

import pytest

from hack.controlplane import build


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HAMI_DRA_CACHE", str(tmp_path / "cache"))
    build.folder_of.cache_clear()
    yield
    build.folder_of.cache_clear()


@pytest.fixture
def fake_go(tmp_path, monkeypatch):
    """`fake_go(body)` puts a shell script named go on PATH; $out is the -o folder of a build, and all modules lie in one folder."""

    def make(body, version="go1.27.3"):
        folder = tmp_path / "go"
        folder.mkdir(exist_ok=True)
        script = folder / "go"
        script.write_text(
            f'#!/bin/sh\nif [ "$1" = env ]; then echo {version}; exit; fi\n'
            f'if [ "$1" = list ]; then echo {tmp_path / "module"}; exit; fi\n'
            'while [ "$1" != -o ]; do shift; done\nout=$2; shift 2\n' + body
        )
        script.chmod(script.stat().st_mode | stat.S_IEXEC)
        monkeypatch.setenv("PATH", str(folder), prepend=":")
        return script

    return make


@pytest.fixture
def no_wheel(monkeypatch):
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda _: None)


MAKES_THEM = 'for package in "$@"; do echo some/package >&2; echo built > "$out/$(basename "${package%/v3}")"; done'


def test_builds_once_and_then_only_looks(fake_go):
    fake_go(MAKES_THEM)
    folder = build.ensure("1.37.1", lambda _: None)
    assert {path.name for path in folder.iterdir()} == {
        "etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler",
    }  # fmt: skip
    fake_go("exit 1")
    assert build.ensure("v1.37.1", pytest.fail) == folder


def test_documents_of_modules_lie_beside_the_binaries(fake_go, tmp_path):
    fake_go(MAKES_THEM)
    wanted = build.target("workloads")
    for source in wanted.documents.values():
        file = tmp_path / "module" / source.partition(":")[2]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(source)
    folder = build.ensure("workloads", lambda _: None)
    assert {path.name for path in folder.iterdir()} == {"jobset", "lws", *wanted.documents}
    assert (folder / "lws-crd.yaml").read_text() == wanted.documents["lws-crd.yaml"]


def test_cache_keys_tell_targets_apart_and_name_the_version():
    folders = {name: build.folder_of(name) for name in build.TARGETS}
    assert len(set(folders.values())) == len(folders)
    assert folders["1.36.4"].name.startswith("1.36.4-")


def test_the_version_is_stamped_into_the_components():
    flags = build.target("1.36.4").ldflags
    assert "gitVersion=v1.36.4" in flags
    assert "gitMinor=36" in flags


def test_an_unknown_version_names_the_choices():
    with pytest.raises(build.BuildError, match=r"'1\.30\.0' cannot be built here; choose from 1\.37\.1"):
        build.ensure("1.30.0")


def test_a_failed_build_leaves_nothing_and_shows_what_go_said(fake_go):
    fake_go('echo half > "$out/etcd"; echo "x.go:1:1: undefined: y" >&2; exit 1')
    with pytest.raises(build.BuildError, match=r"`go build` failed \(exit status 1\):\nx\.go:1:1: undefined: y"):
        build.ensure("kwok", lambda _: None)
    assert not build.is_built("kwok")
    assert [path.name for path in build.cache_folder().iterdir() if path.suffix != ".lock"] == []


def test_an_unreachable_proxy_is_said_so(fake_go):
    fake_go("echo 'go: x@v1: Get \"https://p/\": dial tcp: lookup p: no such host' >&2; exit 1")
    with pytest.raises(build.BuildError, match="the Go module proxy cannot be reached"):
        build.ensure("kwok", lambda _: None)


def test_without_go_the_error_says_how_to_get_it(tmp_path, monkeypatch, no_wheel):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(build.NoGoToolchain, match=r"there is none on PATH.*uv sync --group e2e"):
        build.find_go()


def test_a_go_too_old_is_passed_over_for_the_wheel(tmp_path, fake_go, monkeypatch):
    old = fake_go("exit 1", version="go1.21.4")
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(build.NoGoToolchain, match=rf"{old} is 1\.21"):
        build.find_go()
    wheel = tmp_path / "site-packages" / "go"
    (wheel / "bin").mkdir(parents=True)
    (wheel / "bin" / "go").write_text("#!/bin/sh\necho go1.27.3\n")
    (wheel / "bin" / "go").chmod(0o755)

    class Found:
        submodule_search_locations = (str(wheel),)

    monkeypatch.setattr(build.importlib.util, "find_spec", lambda _: Found)
    assert build.find_go() == wheel / "bin" / "go"


def test_two_builders_make_one_build(fake_go, tmp_path, monkeypatch):
    fake_go(f'echo once >> "{tmp_path}/count"; sleep 0.2; {MAKES_THEM}')
    never = threading.Event()
    monkeypatch.setattr(build.time, "sleep", lambda _: never.wait(0.02))
    said = []
    builders = [threading.Thread(target=build.ensure, args=("kwok", said.append)) for _ in range(2)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert (tmp_path / "count").read_text() == "once\n"
    assert build.is_built("kwok")


def test_the_script_prints_folders_and_fails_with_the_reason(capsys, fake_go):
    fake_go(MAKES_THEM)
    assert build.main(["kwok"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == str(build.folder_of("kwok"))
    assert build.main(["1.0.0"]) == 1
    assert "cannot be built here" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("missing", "said"),
    [(3, "compiling: 2 of 5 packages"), (0, "compiling: 2 packages so far")],
    ids=["counted", "not known"],
)
def test_progress_says_how_many_packages_there_are_where_go_knows(missing, said):
    asked = []
    watcher = build._Watcher(io.StringIO("go: downloading a v1\n"), lambda: pytest.fail("before all modules are there"))
    watcher.run()
    assert watcher.progress() == "downloading: 1 modules"
    watcher = build._Watcher(io.StringIO("a/b\nc.d/e\n"), lambda: asked.append(1) or missing)
    watcher.run()
    assert [watcher.progress(), watcher.progress(), asked] == [said, said, [1]]


def test_what_is_missing_is_asked_with_the_flags_of_the_build(fake_go, tmp_path):
    go = fake_go("exit 1")
    go.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\necho a/b c/d\n')
    command = [str(go), "build", "-v", "-trimpath", "-ldflags", "-s -w", "-o", "out/", "a/b", "e/f"]
    assert build._count_missing(command, tmp_path, {}) == 2
    assert (tmp_path / "asked").read_text().split() == [
        "list", "-deps", "-f", "{{if", ".Stale}}{{.ImportPath}}{{end}}", "-trimpath", "-ldflags", "-s", "-w", "a/b", "e/f",
    ]  # fmt: skip
