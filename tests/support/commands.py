"""`hami-dra` as a user types it, in this process."""

from dataclasses import dataclass

import pytest

from controller.cli.main import run


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
        with pytest.raises(SystemExit) as ended:
            run([str(word) for word in words])
        out, err = self._capsys.readouterr()
        return Result(int(ended.value.code or 0), out, err)
