"""Folders that a hostile container has filled are removed."""

import os

import pytest

from hami_dra.driver.prepare.trees import remove_tree


def deep(folder, levels, name="a"):
    """Nested folders, more than a path can name."""
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(levels):
        os.mkdir(name, dir_fd=descriptor)
        inner = os.open(name, os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)


@pytest.mark.parametrize("levels", [1, 31, 32, 33, 34, 100, 3_000])
def test_nested_folders_however_deep(tmp_path, levels):
    folder = tmp_path / "view"
    folder.mkdir()
    deep(folder, levels)
    remove_tree(folder)
    assert list(tmp_path.iterdir()) == []


def test_names_that_it_would_give_itself(tmp_path):
    folder = tmp_path / "view"
    for number in range(3):
        (folder / f".removed-{number}" / "full").mkdir(parents=True)
    (folder / ".removed-3").write_text("")
    (folder / ".removed-4").symlink_to(tmp_path)
    deep(folder, 70)
    remove_tree(folder)
    assert list(tmp_path.iterdir()) == []


def test_links_fifos_and_more_files_than_are_listed_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("hami_dra.driver.prepare.trees._BATCH", 7)
    (tmp_path / "kept").write_text("")
    folder = tmp_path / "view"
    folder.mkdir()
    for number in range(30):
        (folder / str(number)).touch()
    os.mkfifo(folder / "fifo")
    (folder / "link").symlink_to(tmp_path)
    (folder / "dangling").symlink_to("nowhere")
    remove_tree(folder)
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]


def test_what_is_no_folder_or_not_there(tmp_path):
    (tmp_path / "kept").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "kept")
    (tmp_path / "file").touch()
    for name in ("link", "file", "none"):
        remove_tree(tmp_path / name)
    assert [each.name for each in tmp_path.iterdir()] == ["kept"]
