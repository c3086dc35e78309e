"""Random cases that failed, as files in .fuzz/ of the checkout, each replayed by `python hack/fuzz.py --replay FILE`."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).resolve().parents[2] / ".fuzz"


def keep(kind: str, case: Mapping[str, Any], why: str) -> Path:
    """`kind` is what hack/fuzz.py calls such cases. Returns the file."""
    FOLDER.mkdir(exist_ok=True)
    content = json.dumps({"kind": kind, "case": case, "why": why.splitlines()}, indent=1, sort_keys=True)
    path = FOLDER / f"{kind}-{hashlib.sha256(content.encode()).hexdigest()[:8]}.json"
    path.write_text(content + "\n")
    return path


@contextmanager
def kept(kind: str, case: Mapping[str, Any]) -> Iterator[None]:
    """Keep the case where the block fails, and say so. While hypothesis shrinks, the last to fail is the smallest."""
    try:
        yield
    except Exception as error:
        latest = FOLDER / f"{kind}-latest.json"
        keep(kind, case, str(error)).replace(latest)
        error.add_note(f"to see it again: .venv/bin/python hack/fuzz.py --replay {latest.relative_to(FOLDER.parent)}")
        raise
