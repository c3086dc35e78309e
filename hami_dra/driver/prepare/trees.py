"""Remove a folder that a container could write to, whatever it contains.

Used by `files`. Blocks. Raises OSError. shutil.rmtree calls itself for each level, so a thousand
nested folders end it with RecursionError, and it lists a whole folder at once, however many files
it has.
"""

import os
from itertools import count, islice
from pathlib import Path
from typing import Final

_DEEP: Final = 32
"""Folders below this level are first moved to the top."""
_BATCH: Final = 1_000
"""Entries that are listed at once."""
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def remove_tree(path: Path) -> None:
    """Remove a folder with its content; a missing one is no error. A symbolic link is removed, not followed."""
    try:
        top = os.open(path, _FOLDER)
    except FileNotFoundError:
        return
    except NotADirectoryError:
        path.unlink()  # a file or a link
        return
    try:
        _empty(top, top, 0, count())
    finally:
        os.close(top)
    path.rmdir()


def _empty(folder: int, top: int, level: int, numbers: "count[int]") -> None:
    """Empty the open folder; folders that are too deep are moved to `top`, which is emptied last."""
    while found := _some(folder):
        for name, is_folder in found:
            if not is_folder:
                os.unlink(name, dir_fd=folder)
            elif level >= _DEEP:
                _move(name, folder, top, numbers)
            else:
                inner = os.open(name, _FOLDER, dir_fd=folder)
                try:
                    _empty(inner, top, level + 1, numbers)
                finally:
                    os.close(inner)
                os.rmdir(name, dir_fd=folder)


def _some(folder: int) -> list[tuple[str, bool]]:
    """Return names in the open folder, and whether they are folders; empty if it is."""
    with os.scandir(folder) as entries:
        return [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in islice(entries, _BATCH)]


def _move(name: str, folder: int, top: int, numbers: "count[int]") -> None:
    """Move a folder to `top`, under a name that nothing there has."""
    for number in numbers:
        free = f".removed-{number}"
        try:
            os.stat(free, dir_fd=top, follow_symlinks=False)
        except FileNotFoundError:
            os.rename(name, free, src_dir_fd=folder, dst_dir_fd=top)
            return
