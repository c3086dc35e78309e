"""Objects as YAML that every Kubernetes tool reads back unchanged.

Used by `hami-dra slices` and the generator. PyYAML leaves text such as `-00e1` bare, which Go's
parsers take for a number; a `links` attribute can look like that, so everything that resembles a
number is quoted.
"""

import re
from collections.abc import Iterable
from typing import Any, Final

import yaml

_LIKE_A_NUMBER: Final = re.compile(r"[-+.]?[0-9][-+.0-9_:a-fA-FoOxX]*")


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 (the hook's signature)
        """Write repeated values twice: anchors surprise people."""
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if _LIKE_A_NUMBER.fullmatch(text) else None)


_Dumper.add_representer(str, _text)


def yaml_text(documents: Iterable[dict[str, Any]]) -> str:
    """Return a YAML stream; keys keep their order."""
    return yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, width=120)
