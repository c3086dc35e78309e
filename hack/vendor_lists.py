"""Lists of vendors and drivers inside hand-written files: the chart's schema, policies, RBAC. Called by `hack.generate`.

A list keeps its order; what the registry has and the list lacks is appended, what it no longer has is removed.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from hami_dra.vendors.registry import PLUGINS

ROOT: Final = Path(__file__).resolve().parent.parent
SCHEMA: Final = "charts/hami-dra/values.schema.json"
_SCHEMA_LIST: Final = re.compile(
    r'(?<=^  "vendors": \{\n   "type": "object",\n   "additionalProperties": false,\n   "properties": \{\n)'
    r"[\s\S]*?(?=\n   \}\n)",
    re.MULTILINE,
)
_SCHEMA_ITEM: Final = '    "{}": {{\n     "$ref": "#/definitions/vendor"\n    }}'
_QUOTED: Final = re.compile(r"(?<=\[)'nvidia\.hami\.io'[^\]]*(?=\])")
_PLAIN: Final = re.compile(r"(?<=resourceNames: \[)nvidia\.hami\.io[^\]]*(?=\])")


def vendor_lists() -> dict[str, str]:
    """Return path below the root of the checkout → text. Raises ValueError where a file has no such list."""
    vendors = [plugin.name for plugin in PLUGINS]
    drivers = [plugin.driver for plugin in PLUGINS]
    return {
        SCHEMA: _written(SCHEMA, _SCHEMA_LIST, r'^    "(\w+)"', vendors, lambda all_: ",\n".join(map(_item, all_))),
        **{
            path: _written(path, _QUOTED, r"'([^']+)'", drivers, lambda all_: ", ".join(f"'{each}'" for each in all_))
            for path in ("manifests/slice-policy.yaml", "manifests/claim-policy.yaml")
        },
        "manifests/rbac-driver.yaml": _written("manifests/rbac-driver.yaml", _PLAIN, r"([^\s,]+)", drivers, ", ".join),
    }


def _item(vendor: str) -> str:
    return _SCHEMA_ITEM.format(vendor)


def _written(
    path: str, place: re.Pattern[str], item: str, wanted: Sequence[str], join: Callable[[list[str]], str]
) -> str:
    def replaced(found: re.Match[str]) -> str:
        present = [each for each in re.findall(item, found[0], re.MULTILINE) if each in wanted]
        return join([*present, *(each for each in wanted if each not in present)])

    text, count = place.subn(replaced, (ROOT / path).read_text())
    if not count:
        raise ValueError(f"{path} has no list of vendors where hack/vendor_lists.py looks for it")
    return text
