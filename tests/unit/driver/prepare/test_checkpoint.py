"""The list of what is prepared: read back exactly, never believed when damaged, made again from what is safe."""

import fcntl
import json
import stat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hami_dra.api.containers import Edits
from hami_dra.driver.prepare import cdi
from hami_dra.driver.prepare.checkpoint import Damaged, decode, encode
from hami_dra.driver.prepare.errors import NotWritten, Unreadable
from hami_dra.driver.prepare.files import FileLock, Files
from hami_dra.driver.prepare.records import ContainerView, GrantedDevice, Record
from tests.support.preparing import DRIVER, PreparedNode, claim, pod, result, share

C = claim("c", share("gpu-0"), result("gpu-2-mig-1g-5gb-0", "part"))


@pytest.fixture
def node(tmp_path):
    found = PreparedNode(tmp_path)
    found.prepare(C, pods=[pod()])
    return found


def test_it_is_read_back_exactly(node):
    assert decode(DRIVER, node.checkpoint.read_bytes()) == dict(node.work.written)
    assert encode(DRIVER, node.work.written) == node.checkpoint.read_bytes()


def test_every_changed_byte_is_noticed(node):
    text = node.checkpoint.read_bytes()
    for place in range(0, len(text), 7):
        changed = bytearray(text)
        changed[place] ^= 1
        with pytest.raises(Damaged):
            decode(DRIVER, bytes(changed))
    for length in range(0, len(text), 97):
        with pytest.raises(Damaged):
            decode(DRIVER, text[:length])


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=200) | st.dictionaries(st.text(), st.integers()).map(lambda found: json.dumps(found).encode())
)
def test_no_text_is_taken_for_a_checkpoint(text):
    with pytest.raises(Damaged):
        decode(DRIVER, text)


def test_of_another_driver(node):
    with pytest.raises(Damaged, match=r"not of metax\.hami\.io"):
        decode("metax.hami.io", node.checkpoint.read_bytes())


@pytest.mark.parametrize(
    "text", [b"", b"{", b'{"version": 2, "future": true}', b'{"version": 1, "sha256": "", "state": {}}']
)
def test_a_damaged_one_is_set_aside_and_made_again_from_cdi_files(node, text):
    before, answers = dict(node.work.written), node.work.written["uid-c"].answers
    node.checkpoint.write_bytes(text)
    assert node.restart() == []
    aside = node.checkpoint.with_name("checkpoint.json.damaged-1")
    assert aside.read_bytes() == text
    assert dict(node.work.written) == before
    assert node.prepare(C, pods=[pod()])["uid-c"].answers == answers
    assert "default/c" in node.prepare(claim("d", result("gpu-2-mig-1g-5gb-0")))["uid-d"]
    assert node.unprepare(C) == {"uid-c": ""}
    assert node.traces() == []


def test_each_damaged_one_is_kept(node):
    for number in (1, 2):
        node.checkpoint.write_bytes(b"?")
        node.restart()
        assert node.checkpoint.with_name(f"checkpoint.json.damaged-{number}").exists()


def test_a_lost_one_is_made_again(node):
    before = dict(node.work.written)
    node.checkpoint.unlink()
    assert node.restart() == []
    assert dict(node.work.written) == before


def test_with_nothing_to_go_by_nothing_is_prepared(node):
    """A CDI file of ours that says nothing may stand for a claim that holds the card."""
    node.checkpoint.write_bytes(b"?")
    (spec,) = node.cdi.iterdir()
    spec.write_text('{"cdiVersion": "0.6.0", "kind": "nvidia.hami.io/claim", "devices": []}')
    with pytest.raises(Unreadable, match="drain the node"):
        node.restart()
    why = node.prepare(claim("d", share("gpu-1")))["uid-d"]
    assert "drain the node, remove both files" in why
    assert str(spec) in why
    assert node.checkpoint.read_bytes() == b"?"  # nothing is thrown away
    node.checkpoint.unlink()
    spec.unlink()
    assert node.restart() == []
    assert not isinstance(node.prepare(claim("d", share("gpu-1")))["uid-d"], str)


def test_files_of_others_are_left_alone(node):
    others = [
        "nvidia.yaml",
        "nvidia.hami.io-claim_.json",
        "metax.hami.io-claim_uid-x.json",
        "nvidia.hami.io-claim_a_b.json",
    ]
    for name in others:
        (node.cdi / name).write_text("{}")
    node.restart()
    node.unprepare(C)
    assert sorted(path.name for path in node.cdi.iterdir()) == sorted(others)


def test_stale_cdi_files_are_removed_at_start(node):
    stale = node.cdi / "nvidia.hami.io-claim_uid-old.json"
    stale.write_text("{}")
    (node.cdi / "nvidia.hami.io-claim_uid-old.json.tmp").write_text("{")
    node.restart()
    assert [path.name for path in node.cdi.iterdir()] == ["nvidia.hami.io-claim_uid-c.json"]


def test_a_state_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "state").write_text("a file")
    node = PreparedNode(tmp_path)
    assert "checkpoint.lock cannot be acquired" in node.prepare(C)["uid-c"]
    with pytest.raises(NotWritten):
        node.restart()


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_file_is_whole_private_and_new_each_time(tmp_path):
    files, path = Files(), tmp_path / "f"
    files.write(path, b"one")
    first = files.stamp(path)
    files.write(path, b"two")
    assert files.read(path) == b"two"
    assert files.stamp(path) != first
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert files.names(tmp_path) == ["f"]


def test_a_write_that_fails_leaves_the_old_file_and_no_rest(tmp_path):
    class Full(Files):
        def rename(self, _source, _target):
            raise OSError(28, "No space left on device")

    path = tmp_path / "f"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space"):
        Full().write(path, b"new")
    assert [found.name for found in tmp_path.iterdir()] == ["f"]
    assert path.read_bytes() == b"old"


def test_what_is_not_there_is_no_error(tmp_path):
    files = Files()
    assert files.read(tmp_path / "f") is None
    assert files.stamp(tmp_path / "f") is None
    assert files.names(tmp_path / "none") == []
    assert files.leftovers(tmp_path / "none", "f") == []
    files.remove(tmp_path / "f")
    files.remove_folder(tmp_path / "none")


def test_folders_have_the_mode_that_was_asked_for_and_links_are_not_followed(tmp_path):
    files = Files()
    files.make_folder(tmp_path / "a" / "b", 0o777)
    assert stat.S_IMODE((tmp_path / "a" / "b").stat().st_mode) == 0o777
    (tmp_path / "a" / "b" / "kept").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match=r"symbolic|directory"):
        files.make_folder(tmp_path / "link", 0o777)
    files.remove_folder(tmp_path / "link")
    assert (tmp_path / "a" / "b" / "kept").exists()


def test_the_lock_is_for_one_at_a_time(tmp_path):
    path = tmp_path / "folder" / "lock"
    with FileLock(path), path.open() as other, pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    with path.open() as other:
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_what_a_cdi_file_remembers_stays_below_what_containerd_takes():
    view = ContainerView(name="v", asked=(("uid-c", "r"),), pods=tuple(f"uid-{number:040}" for number in range(5_000)))
    held = GrantedDevice(request="r", pool="n1", device="gpu-0", card="GPU-0")
    record = Record(
        namespace="default", name="c", uid="uid-c", allocation="x", state="prepared", held=(held,), views=(view,)
    )
    document = cdi.document(DRIVER, record, {"v": Edits(env={"A": "1"})})
    assert len(document["annotations"][cdi.RECORD]) < 200 * 1024
    remembered = cdi.record_of(DRIVER, "uid-c", cdi.encoded(document))
    assert remembered.held == (held,)
    assert remembered.views[0].asked == view.asked
