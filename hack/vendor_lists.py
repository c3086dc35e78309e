"""Lists of vendors inside hand-written files: the chart's values and schema, policies, RBAC, the
webhook's rules, docs, the contracts of import-linter.

Called by `hack.generate`. All of them are in the order of the registry; the text around each list
is left as it is.
"""

import re
import textwrap
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Final, NamedTuple

from hami_dra.vendors.plugin import HostPath, VendorPlugin
from hami_dra.vendors.registry import PLUGINS, options_of

ROOT: Final = Path(__file__).resolve().parent.parent
SCHEMA: Final = "charts/hami-dra/values.schema.json"
VALUES: Final = "charts/hami-dra/values.yaml"
TABLE: Final = "docs/vendors/README.md"
_MOST_COLUMNS: Final = 120


class VendorList(NamedTuple):
    """A list in a file. `place` matches it wherever it stands, and nothing around it."""

    path: str
    place: re.Pattern[str]
    write: Callable[[Sequence[VendorPlugin]], str]


def vendor_lists(plugins: Sequence[VendorPlugin] = PLUGINS) -> dict[str, str]:
    """Return path below the root of the checkout → text. Raises ValueError where a file has no such list."""
    texts = {}
    for path, place, write in LISTS:
        written = write(plugins).replace("\\", r"\\")
        text, count = place.subn(written, (ROOT / path).read_text())
        if not count:
            raise ValueError(f"{path} has no list of vendors where hack/vendor_lists.py looks for it")
        texts[path] = text
    return texts


def _whole_card_resources(plugin: VendorPlugin) -> tuple[str, ...]:
    """Return the extended resources of whole cards: `nvidia.com/gpu`; several where each series has its own."""
    specs = (each["spec"] for each in plugin.publishing.device_classes())
    return tuple(spec["extendedResourceName"] for spec in specs if "extendedResourceName" in spec)


def _schema_properties(plugins: Sequence[VendorPlugin]) -> str:
    return ",\n".join(f'    "{plugin.name}": {{\n     "$ref": "#/definitions/vendor"\n    }}' for plugin in plugins)


def _values(plugins: Sequence[VendorPlugin]) -> str:
    return "".join(_block_of_values(plugin) for plugin in plugins)


def _block_of_values(plugin: VendorPlugin) -> str:
    lines = [
        f"  {plugin.name}:",
        "    enabled: false",
        "    deviceClasses: true",
        '    podRuntimeClassName: ""',
        "    nodeSelector: {}",
    ]
    if resources := _whole_card_resources(plugin):
        lines += [
            "    tolerations:",
            *(f"    - key: {name}\n      operator: Exists\n      effect: NoSchedule" for name in resources),
        ]
    if plugin.host_paths:
        lines += ["    hostPaths:", *(line for each in plugin.host_paths for line in _host_path(each))]
    return "\n".join(lines) + "\n"


def _host_path(each: HostPath) -> list[str]:
    read_only = "false" if each.writable else "true"
    kind = ("File" if each.is_file else "Directory") + ("OrCreate" if each.create else "")
    return [
        *textwrap.wrap(each.purpose, _MOST_COLUMNS, initial_indent="    # ", subsequent_indent="    # "),
        f"    - path: {each.path}",
        f"      readOnly: {read_only}",
        f"      type: {kind}",
    ]


def _quoted_drivers(plugins: Sequence[VendorPlugin]) -> str:
    return ", ".join(f"'{plugin.driver}'" for plugin in plugins)


def _drivers(plugins: Sequence[VendorPlugin]) -> str:
    return ", ".join(plugin.driver for plugin in plugins)


def _legacy_resources(plugins: Sequence[VendorPlugin]) -> str:
    """Return names in CEL, a line for each vendor and domain."""
    lines = [
        ", ".join(f"'{name}'" for name in group)
        for plugin in plugins
        for _, group in groupby(plugin.legacy.resources, key=lambda name: name.partition("/")[0])
    ]
    return ",\n      ".join(lines)


def _rows(plugins: Sequence[VendorPlugin]) -> str:
    return "".join(
        f"| [{plugin.title}]({plugin.name}.md) | `{plugin.driver}` | {_in_code(_whole_card_resources(plugin))} | {plugin.parts} |\n"
        for plugin in plugins
    )


def _in_code(texts: Sequence[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _sharing_rows(plugins: Sequence[VendorPlugin]) -> str:
    return "".join(
        f"| `sharing.{option.field}` | {', '.join(plugin.title for plugin in readers)} | {option.help.removesuffix('.')} |\n"
        for option, readers in options_of(plugins).items()
        if option.field
    )


def _packages(plugins: Sequence[VendorPlugin]) -> str:
    """Return the folders of the vendors of this project."""
    packages = [type(plugin.rules).__module__.rpartition(".")[0] for plugin in plugins]
    return "".join(f'  "{package}",\n' for package in sorted(packages) if package.startswith("hami_dra.vendors."))


_QUOTED_DRIVERS: Final = re.compile(r"(?<=\[)'nvidia\.hami\.io'[^\]]*(?=\])")
LISTS: Final = (
    VendorList(
        SCHEMA,
        re.compile(
            r'(?<=^  "vendors": \{\n   "type": "object",\n   "additionalProperties": false,\n   "properties": \{\n)'
            r"[\s\S]*?(?=\n   \}\n)",
            re.MULTILINE,
        ),
        _schema_properties,
    ),
    VendorList(VALUES, re.compile(r"(?<=^vendors:\n)(?:  .*\n)*", re.MULTILINE), _values),
    VendorList("manifests/slice-policy.yaml", _QUOTED_DRIVERS, _quoted_drivers),
    VendorList("manifests/claim-policy.yaml", _QUOTED_DRIVERS, _quoted_drivers),
    VendorList(
        "manifests/rbac-driver.yaml", re.compile(r"(?<=resourceNames: \[)nvidia\.hami\.io[^\]]*(?=\])"), _drivers
    ),
    VendorList("manifests/webhook.yaml", re.compile(r"(?<=\[)'nvidia\.com/gpu'[^\]]*(?=\])"), _legacy_resources),
    VendorList(
        "docs/publishing.md",
        re.compile(r"(?<=\| setting \| applies to \| meaning \|\n\|---\|---\|---\|\n)(?:\| `sharing\..*\n)*"),
        _sharing_rows,
    ),
    VendorList(
        "pyproject.toml",
        re.compile(r'(?<=modules = \[\n)(?:  "hami_dra\.vendors\.[a-z]+",\n)+'),
        _packages,
    ),
    VendorList(TABLE, re.compile(r"(?<=\|---\|---\|---\|---\|\n)(?:\|.*\n)*"), _rows),
)
