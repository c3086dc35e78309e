"""Run tests/hostile on the other Pythons that hami-dra supports: parsers recurse to other depths
there. Called by `hack/test.py`.

    python hack/interpreters.py [--parsers] [3.12] [3.13]

With --parsers only the tests of what reads bytes and texts, which takes seconds.
Each version gets a virtual environment of its own in .venv/, from uv.lock. Interpreters are taken
from the PATH and from pyenv, otherwise uv downloads one. The last lines say which versions ran; a
missing one is a failure with REQUIRE_ALL=1.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
VERSIONS: Final = ("3.12", "3.13")
TESTS: Final = ["-q", "--ignore=tests/hostile/cluster", "tests/hostile"]
PARSERS: Final = ["-q", *(f"tests/hostile/test_{name}.py" for name in ("any_bytes", "unreadable_objects", "printing"))]


def candidates(version: str) -> Iterator[str]:
    """Where an interpreter may be; the version alone lets uv look for it, and download it."""
    if found := shutil.which(f"python{version}"):
        yield found
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    yield from (str(path) for path in sorted(pyenv.glob(f"{version}.*/bin/python"), reverse=True))
    yield version


def works(interpreter: str, version: str) -> bool:
    """A shim of pyenv is on the PATH whether or not it leads anywhere."""
    asked = [interpreter, "-c", "import sys; print('%d.%d' % sys.version_info[:2])"]
    try:
        answer = subprocess.run(asked, capture_output=True, text=True, check=False, timeout=60)
    except OSError:
        return False
    return answer.stdout.strip() == version


def environment(version: str) -> Path | None:
    """The virtual environment of a version, or None if no interpreter is available."""
    folder = ROOT / ".venv" / f"python-{version}"
    sync = [str(ROOT / ".venv" / "bin" / "uv"), "sync", "--quiet", "--all-extras", "--python"]
    for candidate in candidates(version):
        if candidate != version and not works(candidate, version):
            continue
        synced = subprocess.run(
            [*sync, candidate],
            cwd=ROOT,
            env={**os.environ, "UV_PROJECT_ENVIRONMENT": str(folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        if synced.returncode == 0:
            return folder
        print(f"Python {version} of {candidate}: {synced.stderr.strip().splitlines()[-1:]}", flush=True)
    return None


def main() -> int:
    outcomes: dict[str, str] = {}
    asked = [each for each in sys.argv[1:] if each != "--parsers"]
    chosen = TESTS if asked == sys.argv[1:] else PARSERS
    for version in asked or VERSIONS:
        folder = environment(version)
        if folder is None:
            outcomes[version] = "not available"
            continue
        tests = subprocess.run([str(folder / "bin" / "pytest"), *chosen], cwd=ROOT, check=False)
        outcomes[version] = "passed" if tests.returncode == 0 else "FAILED"
    for version, outcome in outcomes.items():
        print(f"Python {version}: {outcome}", flush=True)
    required = os.environ.get("REQUIRE_ALL") == "1"
    return int(any(outcome == "FAILED" or (outcome != "passed" and required) for outcome in outcomes.values()))


if __name__ == "__main__":
    sys.exit(main())
