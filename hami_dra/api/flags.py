"""Options of programs: an option is declared with the field of the settings that it sets.

>>> class Waiting(Struct):
...     patience: Annotated[float, Option("How long.", duration(least=0))] = 90.0
>>> declared = Declared.of("patience", Waiting.__annotations__["patience"], 90.0)
>>> declared.flag, declared.option.form.write(90.0), declared.option.form.read("1m30s")
('--patience', '90s', 90.0)

`controller.cli.declared` makes flags of them. Every command imports this module: it is quick. Options
that vendors declare: `hami_dra.api.options`.
"""

import re
from collections.abc import Callable
from typing import Annotated, Any, Final, NamedTuple, Self, get_args, get_origin

from msgspec import Struct


class Form(Struct, frozen=True, kw_only=True, eq=False):
    """How a value is written, where its type does not say it."""

    read: Callable[[Any], Any] | None = None
    """Convert what is written. Raises ValueError, whose text names the value and the fix."""
    write: Callable[[Any], str] = str
    """Convert a default back, for the help."""
    check: Callable[[Any], object] | None = None
    """Look at each value while the command line is parsed. Raises ValueError."""
    choices: tuple[str, ...] = ()
    least: int | None = None
    most: int | None = None
    """Bounds of a whole number."""
    repeated: bool = False
    """Whether `read` takes all values of an option that may be repeated."""


PLAIN: Final = Form()
"""As its type is written."""


_NONE: Final = type(None)


class Option(Struct, frozen=True, eq=False):
    """The flag of a field. Its default is that of the field."""

    help: str
    form: Form = PLAIN
    flags: tuple[str, ...] = ()
    """Empty: `--` and the name of the field; a switch that is not off by default has `--no-` of it, too."""
    metavar: str | None = None
    envvar: str | None = None
    values: str = ""
    """What completion offers: a function of `controller.cli.completion_values`."""
    show_default: bool = True


class Declared(NamedTuple):
    """A field, or an argument of a command, that has an option."""

    name: str
    option: Option
    kind: Any
    """Type, without the annotation and without None."""
    default: Any

    @classmethod
    def of(cls, name: str, annotation: Any, default: Any) -> Self | None:
        """Return the option of an annotation, if it has one."""
        if get_origin(annotation) is not Annotated:
            return None
        kind, *notes = get_args(annotation)
        if _NONE in get_args(kind):
            kind = get_args(kind)[0]
        return next((cls(name, note, kind, default) for note in notes if isinstance(note, Option)), None)

    @property
    def flag(self) -> str:
        return self.option.flags[-1].partition("/")[0] if self.option.flags else f"--{self.name.replace('_', '-')}"

    @property
    def is_repeated(self) -> bool:
        form = self.option.form
        return form.repeated or (form.read is None and get_origin(self.kind) in {tuple, frozenset})


# --- forms ---------------------------------------------------------------------------------------

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}
_DAY: Final = 86400.0
_PART: Final = r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h)"
_LABEL: Final = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_SUBDOMAIN: Final = rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*"


def duration(least: float = 0.1, most: float = _DAY, *, whole_seconds: str = "") -> Form:
    """Read 15s, 1m30s, 500ms, or a bare number of seconds, as seconds between these bounds.

    `whole_seconds`: what must be whole seconds, for the error.
    """

    def read(text: str) -> float:
        value = _seconds(text)
        if not least <= value <= most:
            raise ValueError(f"{text!r} is out of range: from {least:g}s to {most:g}s")
        if not whole_seconds:
            return value
        if value != int(value):
            raise ValueError(f"{text!r}: {whole_seconds} must be whole seconds")
        return int(value)

    return Form(read=read, write=_written_seconds)


def _seconds(text: str) -> float:
    plain = text.strip()
    if re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", plain):
        return float(plain)
    parts = re.findall(_PART, plain)
    if not parts or "".join(number + unit for number, unit in parts) != plain:
        raise ValueError(f"{text!r} is not a duration; write it like 15s, 1m30s or 500ms")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def _written_seconds(value: float) -> str:
    return f"{value / 60:g}m" if value % 60 == 0 else f"{value:g}s"


def checked(fits: Callable[[Any], object], wanted: str) -> Form:
    """Accept values that fit. `wanted`: what the others are not."""

    def check(value: Any) -> None:
        if not fits(value):
            raise ValueError(f"{str(value)!r} is not {wanted}")

    return Form(check=check)


def _pattern(text: str, wanted: str) -> Form:
    return checked(lambda value: re.fullmatch(text, value), wanted)


def _is_host(text: str) -> bool:
    import ipaddress

    try:
        ipaddress.ip_address(text)
    except ValueError:
        return re.fullmatch(_SUBDOMAIN, text.lower().removeprefix("*.")) is not None
    return True


def one_of_two(true: str, false: str) -> Form:
    """Read a word for True or one for False."""
    return Form(read=true.__eq__, write={True: true, False: false}.__getitem__, choices=(true, false))


LAST_PORT: Final = 65535
PORT: Final = Form(least=0, most=LAST_PORT)
ON_OFF: Final = one_of_two("on", "off")
NAMESPACE_NAME: Final = _pattern(_LABEL, "the name of a namespace, such as hami-dra-system")
NODE_NAME: Final = _pattern(rf"({_SUBDOMAIN})?", "the name of a Node, such as gpu-node-1")
SCHEDULER_NAME: Final = _pattern(_SUBDOMAIN, "the name of a scheduler, such as default-scheduler")
INSTALLATION: Final = _pattern(_SUBDOMAIN, "a name of lower-case letters, digits, '-' and '.', such as hami-dra")
IMAGE: Final = _pattern(r"[A-Za-z0-9][!-~]{0,511}", "an image, such as registry.k8s.io/pause:3.10")
POD_UID: Final = _pattern(r"[A-Za-z0-9-]{0,63}", "the UID of a pod")
HOST: Final = checked(_is_host, "a host name or an IP address")
ABSOLUTE_PATH: Final = checked(
    lambda path: str(path).startswith("/") and "\0" not in str(path), "an absolute path, such as /var/lib/kubelet"
)
"""Of a text or a Path."""
