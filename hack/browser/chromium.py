"""Debian's Chromium and a font with Chinese, for the tests of the page: found, or installed by apt.

    python -m hack.browser.chromium          # installs what is missing; exit status 1 where it cannot

Called by `make test` before the suite `browser`. Nothing else is downloaded: playwright only drives
what is installed.
"""

import os
import shutil
import subprocess
import sys
from typing import Final

NAMES: Final = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
PACKAGES: Final = ("chromium", "fonts-noto-cjk")
FLAGS: Final = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
HOW: Final = "install it with `apt-get install chromium fonts-noto-cjk`, or name one in HAMI_DRA_CHROMIUM"


def find() -> str | None:
    """Its path, or None."""
    named = os.environ.get("HAMI_DRA_CHROMIUM")
    if named:
        return named if shutil.which(named) else None
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def has_chinese() -> bool:
    if shutil.which("fc-list") is None:
        return False
    listed = subprocess.run(["fc-list", ":lang=zh"], capture_output=True, check=False)
    return bool(listed.stdout.strip())


def main() -> int:
    missing = [
        name for name, is_there in zip(PACKAGES, (find() is not None, has_chinese()), strict=True) if not is_there
    ]
    if not missing:
        return 0
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        print(f"the page cannot be tested in a browser: {' and '.join(missing)} missing; {HOW}", file=sys.stderr)
        return 0 if find() else 1
    print(f"installing {' '.join(missing)}", flush=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (
        ["apt-get", "update", "-qq"],
        ["apt-get", "install", "-y", "-qq", "--no-install-recommends", *missing],
    ):
        if subprocess.run(command, env=environment, check=False).returncode != 0:
            print(f"{' '.join(command)} failed; {HOW}", file=sys.stderr)
            return 0 if find() else 1
    return 0 if find() else 1


if __name__ == "__main__":
    sys.exit(main())
