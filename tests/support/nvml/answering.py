"""Questions to the pretended NVML without a start of Python for each: a process that has imported everything forks for each question.

    python answering.py      reads questions from its standard input, one JSON object a line

A question is {"arguments": those of nvml_answers.py, "environment": {...}, "output": path, "errors": path}; the answer, one line, is the
exit status. nvidia-ml-py loads its library once in a process, so each question has a process of its own, as with a start of Python.
LD_LIBRARY_PATH is read when a process starts, so it is that of this process.
"""

import atexit
import json
import os
import select
import subprocess
import sys
import traceback
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path


class Answering:
    """The process, started with the first question. Ends with pytest."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        command = [sys.executable, "-W", "error", __file__]
        self._process = subprocess.Popen(
            command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )
        atexit.register(self._end)

    def ask(self, arguments: Sequence[str], environment: Mapping[str, str], folder: Path, *, seconds: float) -> str:
        """Return what the question printed. Raises AssertionError with its errors, and when it takes longer than `seconds`."""
        output, errors = folder / "answer.out", folder / "answer.err"
        question = {
            "arguments": list(arguments),
            "environment": dict(environment),
            "output": str(output),
            "errors": str(errors),
        }
        asked, answered = self._process.stdin, self._process.stdout
        assert asked is not None
        assert answered is not None
        asked.write(f"{json.dumps(question)}\n")
        asked.flush()
        if not select.select([answered], [], [], seconds)[0]:
            self._end()
            answering_with.cache_clear()
            raise AssertionError(f"no answer within {seconds:g} s: {arguments}\n{errors.read_text()}")
        assert answered.readline() == "0\n", errors.read_text()
        return output.read_text()

    def _end(self) -> None:
        os.killpg(self._process.pid, 9)
        self._process.communicate()
        atexit.unregister(self._end)


@cache
def answering_with(library_path: str) -> Answering:
    """The process with that LD_LIBRARY_PATH; its other variables are those of each question."""
    root = Path(__file__).parents[3]
    return Answering(os.environ | {"LD_LIBRARY_PATH": library_path, "PYTHONPATH": str(root)})


def serve() -> None:
    from tests.support.nvml.nvml_answers import answer

    for line in sys.stdin:
        question = json.loads(line)
        child = os.fork()
        if child == 0:
            os._exit(_answered(question, answer))
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)  # noqa: T201 (the protocol)


def _answered(question, answer) -> int:
    os.environ.clear()
    os.environ.update(question["environment"])
    for stream, path in ((1, question["output"]), (2, question["errors"])):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, stream)
    try:
        answer(*question["arguments"])
        sys.stdout.flush()
    except BaseException:  # noqa: BLE001 (whatever it is, the test shows it)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    serve()
