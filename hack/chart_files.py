"""What of the chart is generated: copies of the folders that ship without Helm, too, the value table
of its README, and in the schema of its values what options of the programs allow, and the block of a vendor.

A package of the chart, a checkout on Windows and tools that copy one folder need real files, not
links. Called by `hack.generate`; a test checks that all are up to date.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, get_args

import yaml
from msgspec import Struct
from msgspec.structs import fields

from controller.scoring import Packing
from controller.settings.common import Log, Mode, OptionalSource
from controller.settings.placing import ControllerPreemption, SchedulerOptions
from hami_dra.api import names
from hami_dra.api.flags import Declared
from hami_dra.api.legacy_metrics import NameSet

ROOT: Final = Path(__file__).resolve().parent.parent
CHART: Final = "charts/hami-dra"
COPIED: Final = ("manifests", "deviceclasses", "driverprofiles", "monitoring")
"""Folders of the checkout that the chart has copies of."""
_SCHEMA: Final = f"{CHART}/values.schema.json"
_README: Final = f"{CHART}/README.md"
_TABLE: Final = re.compile(
    r"(?<=<!-- values: generated from values.yaml by make generate -->\n).*(?=<!-- end of values -->)", re.DOTALL
)
_KEY: Final = re.compile(r"^( *)([\w-]+):(?: .*)?$")


class Row(NamedTuple):
    """One value that an operator may set."""

    path: tuple[str, ...]
    default: Any
    meaning: str


def chart_files(generated: Mapping[str, str]) -> dict[str, str]:
    """Return path → text of the generated files of the chart. `generated`: other files, as they should be."""

    def text(path: str) -> str:
        return generated.get(path) or (ROOT / path).read_text()

    sources = {
        str(path.relative_to(ROOT)) for folder in COPIED for path in (ROOT / folder).rglob("*") if path.is_file()
    }
    sources |= {path for path in generated if path.split("/")[0] in COPIED}
    copies = {f"{CHART}/{path}": text(path) for path in sorted({*sources, "LICENSE"})}
    schema = with_declared_options(json.loads((ROOT / _SCHEMA).read_text()))
    table = value_table(text(f"{CHART}/values.yaml"), schema)
    readme = _TABLE.sub(lambda _: table, (ROOT / _README).read_text())
    return copies | {_README: readme, _SCHEMA: json.dumps(schema, indent=1) + "\n"}


def with_declared_options(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema with the words, names and bounds that options allow, as the programs declare
    them. A vendor's block has what it alone has, and any of the values of `driver`.
    """
    values = schema["properties"]
    controller, driver = values["controller"]["properties"], values["driver"]["properties"]
    for place, allowed in (
        (values["mode"], get_args(Mode)),
        (values["log"]["properties"]["format"], _words_of(Log, "log_format")),
        (controller["nodePolicy"], (*names.NODE_POLICIES, *names.RENAMED_NODE_POLICIES)),
        (controller["preferences"], _words_of(SchedulerOptions, "preferences")),
        (controller["preemption"], _words_of(ControllerPreemption, "preemption")),
        (controller["defrag"], _words_of(ControllerPreemption, "defrag")),
        (controller["deletionCost"], _words_of(ControllerPreemption, "deletion_cost")),
        (controller["preemptionPdb"], _words_of(ControllerPreemption, "preemption_pdb")),
        (controller["gangs"]["properties"]["of"]["items"], get_args(OptionalSource)),
        (controller["legacyMetrics"]["items"], tuple(NameSet)),
        (driver["legacyMetrics"]["items"], tuple(NameSet)),
    ):
        place["enum"] = list(allowed)
    device_policy = _list_of(f"({'|'.join(names.DEVICE_POLICIES)})")
    controller["devicePolicy"]["pattern"] = f"^({names.FIRST_FIT}|{device_policy})$"
    driver["devicePolicy"]["pattern"] = f"^({names.FIRST_FIT}|{device_policy})?$"
    weight = rf"({'|'.join(Packing.__struct_fields__)})=[0-9]+(\.[0-9]+)?"
    controller["packingWeights"]["pattern"] = f"^({_list_of(weight)})?$"
    levels = _option_of(Log, "verbosity").option.form
    values["log"]["properties"]["verbosity"] |= {"minimum": levels.least, "maximum": levels.most}
    vendor = schema["definitions"]["vendor"]
    vendor["properties"] = {key: place for key, place in vendor["properties"].items() if key not in driver} | {
        key: {word: rule for word, rule in place.items() if word != "required"} for key, place in driver.items()
    }
    return schema


def _list_of(word: str) -> str:
    return f"{word}( *, *{word})*"


def _option_of(record: type[Struct], name: str) -> Declared:
    option = next(Declared.of(each.name, each.type, each.default) for each in fields(record) if each.name == name)
    assert option is not None
    return option


def _words_of(record: type[Struct], name: str) -> tuple[str, ...]:
    """Return what the option of a field allows."""
    option = _option_of(record, name)
    return option.option.form.choices or get_args(option.kind)


def copied_files() -> Iterator[str]:
    """Paths of the copies that are there."""
    for folder in COPIED:
        yield from (str(path.relative_to(ROOT)) for path in (ROOT / CHART / folder).rglob("*") if path.is_file())


def value_table(values: str, schema: Mapping[str, Any]) -> str:
    """Return a Markdown table of all values but those of single vendors."""
    lines = ["| value | default | description |", "|---|---|---|"]
    for row in rows(values, schema):
        default = json.dumps(row.default, ensure_ascii=False).replace("|", "\\|")
        meaning = row.meaning.replace("|", "\\|")
        lines.append(f"| `{'.'.join(row.path)}` | `{default}` | {meaning} |")
    return "\n".join(lines) + "\n"


def rows(values: str, schema: Mapping[str, Any]) -> Iterator[Row]:
    """Yield all values but those of single vendors, in their order."""
    comments = _comments(values)

    def below(found: Mapping[str, Any], prefix: tuple[str, ...], place: Mapping[str, Any]) -> Iterator[Row]:
        for key, value in found.items():
            path = (*prefix, key)
            if path == ("vendors",):
                continue
            inner = place["properties"][key]
            if isinstance(value, dict) and value and inner.get("additionalProperties") is False:
                yield from below(value, path, inner)
            else:
                yield Row(path, value, comments.get(path, ""))

    yield from below(yaml.safe_load(values), (), schema)


def _comments(values: str) -> dict[tuple[str, ...], str]:
    """Return path → the comment above or behind a key."""
    found: dict[tuple[str, ...], str] = {}
    above: list[str] = []
    path: list[str] = []
    for line in values.splitlines():
        stripped = line.strip()
        if stripped.startswith("# ---"):
            above = []
        elif stripped.startswith("#"):
            above.append(stripped.removeprefix("#").strip())
        elif key := _KEY.match(line):
            del path[len(key[1]) // 2 :]
            path.append(key[2])
            behind = line.partition(" # ")[2].strip()
            if text := " ".join([*above, *([behind] if behind else [])]):
                found[tuple(path)] = text
            above = []
        else:
            above = []
    return found
