"""`hami-dra` as a user types it, in this process."""

from dataclasses import dataclass
from functools import cache
from unittest.mock import patch

import pytest

from controller.cli import main

LOADED = cache(main.loaded)
"""Commands keep nothing from one call to the next; making one anew, and its options, takes longer than most calls."""


@dataclass(frozen=True)
class Result:
    code: int
    stdout: str
    stderr: str


class Typed:
    """Call it with the words after `hami-dra`."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: object) -> Result:
        self._capsys.readouterr()
        with patch.object(main, "loaded", LOADED), pytest.raises(SystemExit) as ended:
            main.run([str(word) for word in words])
        out, err = self._capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)
