"""C programs of the tests, built with the machine's C compiler. Without one: no test, unless REQUIRE_ALL=1."""

import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest


def built(source: Path, name: str, flags: Sequence[str], mark: str) -> Path:
    """Built once for each state of the source, kept among the temporary files."""
    digest = hashlib.sha256(source.read_bytes() + " ".join(flags).encode()).hexdigest()[:16]
    folder = Path(tempfile.gettempdir()) / f"hami-dra-{mark}-{os.getuid()}-{digest}"
    if not (folder / name).exists():
        cc = compiler()
        folder.mkdir(mode=0o700, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as building:
            target = Path(building) / name
            subprocess.run([cc, *flags, "-o", target, source], check=True)
            target.rename(folder / name)  # another worker may have done the same meanwhile
    return folder / name


def compiler() -> str:
    found = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if found is None:
        why = "no C compiler (cc, gcc or clang): install one"
        if os.environ.get("REQUIRE_ALL") == "1":
            pytest.fail(why, pytrace=False)
        pytest.skip(f"NOT RUN: {why}")
    return found
