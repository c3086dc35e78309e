"""Random device selectors, for the tests of hami_dra.cel: mostly well-typed, sometimes not, over one rich device.

`Expressions(random).selector()` draws one. With hypothesis, pass it a `st.randoms()`; then failures shrink.
"""

from collections.abc import Callable
from random import Random
from typing import Any, Final

from hami_dra.cel import CompileError, DeviceInput, EvaluationError, Features, compile_selector

DRIVER: Final = "gpu.example.com"
ATTRIBUTES: Final[dict[str, dict[str, Any]]] = {
    "productName": {"string": "T4"},
    "uuid": {"string": "GPU-1"},
    "text": {"string": "a,b é-ß"},
    "numa": {"int": 1},
    "minus": {"int": -7},
    "healthy": {"bool": True},
    "driverVersion": {"version": "550.54.15"},
    "rc": {"version": "1.0.0-rc.1+b"},
    "zones": {"strings": ["b", "a", "b"]},
    "ids": {"ints": [3, 1, 2]},
    "flags": {"bools": [True, False]},
    "versions": {"versions": ["1.0.0", "2.0.0"]},
    "resource.kubernetes.io/pcieRoot": {"string": "pci0000:00"},
    "other.io/x": {"bool": False},
}
CAPACITY: Final[dict[str, str]] = {"memory": "16Gi", "cores": "100", "frac": "1500m", "other.io/mem": "0.5Gi"}
RICH: Final[dict[str, Any]] = {
    "name": "d",
    "attributes": ATTRIBUTES,
    "capacity": {name: {"value": value} for name, value in CAPACITY.items()},
    "allowMultipleAllocations": True,
}
"""The device as it is published."""


def device_input(device: dict[str, Any]) -> DeviceInput:
    """What selectors see of a published device of `DRIVER`."""
    capacity = {name: entry["value"] for name, entry in device["capacity"].items()}
    shared = device.get("allowMultipleAllocations")
    return DeviceInput.of(DRIVER, device["attributes"], capacity, allow_multiple_allocations=shared)


DEVICE: Final = device_input(RICH)

_STRINGS: Final = [
    '""', '"T4"', "'a'", '"b"', '"a,b"', '"GPU-1"', r'"\u00e9"', '"10"', '"-1.5"', '"true"', 'r"\\d"', '"1.0.0"', '"8Gi"',
    '"10.1.2.3"', '"10.0.0.0/8"', '"fe80::1"', '"https://u:p@h.io:80/a%20b?x=1&x=2&y=#"', '"2024-02-29T12:34:56.7Z"', '"1h30m"',
    '"(a|b)+"', '"[a-z]*"', '"%s-%d"', '"my-name"', '","', '"é"', '"nope"',
]  # fmt: skip
_INTS: Final = ["0", "1", "-1", "2", "3", "7", "100", "-9223372036854775808", "9223372036854775807", "0x10"]
_UINTS: Final = ["0u", "1u", "3u", "18446744073709551615u"]
_DOUBLES: Final = ["0.0", "1.0", "-1.5", "2.5", "1e3", "1e-7", "1.0/0.0", "3.0"]
_QUANTITIES: Final = ['"0"', '"1"', '"1Gi"', '"16Gi"', '"1500m"', '"0.1"', '"100"', '"-3k"', '"1e3"', '"x"', '"0.5Gi"']
_VERSIONS: Final = ['"1.0.0"', '"1.0.0-rc.1"', '"550.54.15"', '"2.0.0+x"', '"v1.2", true', '"1.2"', '"01.0.0", true']
_TIMES: Final = ['"2024-02-29T12:34:56.789Z"', '"1969-12-31T23:59:59+01:30"', '"0001-01-01T00:00:00Z"', '"bad"']
_DURATIONS: Final = ['"1h"', '"-90s"', '"1.5ms"', '"0"', '"24h59m"', '"x"']
_PATTERNS: Final = ['"4"', '"^T"', '"(?i)t4"', '"[ab]"', '""', '"a*"', '"("', '"\\\\bb"', '"(?P<n>b)"', '"é|ß"']
_IPS: Final = [
    '"10.1.1.1"',
    '"::1"',
    '"224.0.0.1"',
    '"fe80::1"',
    '"255.255.255.255"',
    '"::ffff:1.2.3.4"',
    '"01.2.3.4"',
    '"x"',
]
_CIDRS: Final = ['"10.0.0.0/8"', '"10.1.2.3/16"', '"fe80::/10"', '"0.0.0.0/0"', '"10.0.0.0/33"', '"10.0.0.0"']
_URLS: Final = [
    '"https://a.b/c"', '"http://u:p@[::1]:8080/p%2Fq/r?x=1&y=a+b&x=%41#f"', '"/path?q"', '"mailto:x@y"', '"//h/p"', '"a b"',
    '"HTTP://H:x/"', '"https://h/%zz"', '"*"',
]  # fmt: skip
_FORMATS: Final = [
    "dns1123Label",
    "dns1123Subdomain",
    "qualifiedName",
    "labelValue",
    "uri",
    "uuid",
    "byte",
    "date",
    "datetime",
]
_CALLS_TO_TIME: Final = [
    "getFullYear",
    "getMonth",
    "getDayOfYear",
    "getDayOfMonth",
    "getDate",
    "getDayOfWeek",
    "getHours",
]
_ZONES: Final = ["", "", '"-05:30"', '"UTC"']
_TO_INTEGER: Final = ["asInteger()", 'compareTo(quantity("1"))']
_BOOLS: Final = ['"true"', '"x"', '"1"', "true"]
_DOUBLE_CLAUSES: Final = ["%.2f", "%f", "%.0f", "%e", "%s"]
_INT_CLAUSES: Final = ["%d", "%x", "%X", "%o", "%b", "%s"]
_CAPACITIES: Final = ["memory", "cores", "frac", "missing"]
_OPTIONAL_NAMES: Final = ["numa", "missing", "productName"]
_DOMAINS: Final = ["nope", DRIVER]


def as_question(
    expression: str,
    features: Features = Features(),  # noqa: B008 (frozen)
    device: dict[str, Any] = RICH,
) -> dict[str, Any]:
    """What the Go oracle is asked."""
    return {
        "expression": expression,
        "driver": DRIVER,
        "device": device,
        "new": not features.stored,
        "consumableCapacity": features.consumable_capacity,
        "listTypeAttributes": features.list_type_attributes,
    }


def verdict(
    expression: str,
    features: Features = Features(),  # noqa: B008 (frozen)
    device: DeviceInput = DEVICE,
) -> tuple[bool | str, str, int | None]:
    """What we make of it: (verdict or kind of error, message, cost), as the oracle words it."""
    try:
        selector = compile_selector(expression, features=features)
    except CompileError as error:
        return "compile-error", str(error), None
    try:
        return selector.evaluate(device), "", selector.cost(device)
    except EvaluationError as error:
        return "runtime-error", str(error), selector.cost(device)


class Expressions:
    """Draws expressions. The methods are named after the type that they (mostly) yield."""

    def __init__(self, random: Random, *, depth: int = 4, wild: float = 0.04) -> None:
        self._random = random
        self._depth = depth
        self._wild = wild
        self._variables: list[tuple[str, str]] = []  # name, kind

    def selector(self) -> str:
        if self._random.random() < self._wild:
            return self.dyn()
        return self.bool()

    # ---- machinery ----

    def _pick(self, options: list[Any]) -> Any:
        return options[self._random.randrange(len(options))]

    def _choose(self, leaves: list[Callable[[], str]], branches: list[Callable[[], str]]) -> str:
        if self._random.random() < self._wild:  # a value of some other type
            leaves = branches = [self.int, self.string, self.bool, self.double, self.list_int, self.dyn, self.quantity]
        if self._depth <= 0 or self._random.random() < 0.25:
            branches = leaves
        self._depth -= 1
        try:
            return str(self._pick(branches)())
        finally:
            self._depth += 1

    def _variable(self, kind: str, otherwise: str) -> str:
        known = [name for name, of in self._variables if of == kind]
        return self._pick(known) if known else otherwise

    def _with(self, variables: list[tuple[str, str]], body: Callable[[], str]) -> str:
        self._variables += variables
        try:
            return body()
        finally:
            del self._variables[-len(variables) :]

    def _attribute(self, *names: str) -> str:
        name = self._pick(list(names))
        domain, _, identifier = name.rpartition("/")
        domain = domain or DRIVER
        form = self._random.randrange(8)
        if form == 0:
            return f'device.attributes["{domain}"]["{identifier}"]'
        if form == 1:
            return f'cel.bind(d, device.attributes["{domain}"], d.{identifier})'
        if form == 2:
            return f'device.attributes["{domain}"].?{identifier}.value()'
        return f'device.attributes["{domain}"].{identifier}'

    def _name(self) -> str:
        return f"v{len(self._variables)}"

    # ---- types ----

    def bool(self) -> str:
        s, b = self.string, self.bool
        return self._choose(
            [
                lambda: self._pick(["true", "false"]),
                lambda: self._attribute("healthy", "other.io/x", "missing"),
                lambda: self._variable("bool", "true"),
                lambda: "device.allowMultipleAllocations",
                lambda: f'has(device.attributes["{DRIVER}"].{self._pick(_OPTIONAL_NAMES)})',
                lambda: f'"{self._pick(_DOMAINS)}" in device.attributes',
            ],
            [
                lambda: f"{b()} && {b()}",
                lambda: f"{b()} || {b()}",
                lambda: f"({b()} && {b()}) || !{self._paren(b())}",
                lambda: f"({b()} ? {b()} : {b()})",
                lambda: f"{self.int()} {self._relation()} {self.int()}",
                lambda: f"{self.number()} {self._relation()} {self.number()}",
                lambda: f"{s()} {self._relation()} {s()}",
                lambda: f"{self.dyn()} {self._relation()} {self.dyn()}",
                lambda: f"{self.dyn()} {self._pick(['==', '!='])} {self.dyn()}",
                lambda: f"{self.quantity()} {self._pick(['==', '!='])} {self.quantity()}",
                lambda: f"{self.duration()} {self._relation()} {self.duration()}",
                lambda: f"{self.timestamp()} {self._relation()} {self.timestamp()}",
                lambda: f"{self.quantity()}.{self._pick(['isGreaterThan', 'isLessThan'])}({self.quantity()})",
                lambda: f"{self.semver()}.{self._pick(['isGreaterThan', 'isLessThan'])}({self.semver()})",
                lambda: f"{self.quantity()}.isInteger()",
                lambda: f"{s()}.{self._pick(['contains', 'startsWith', 'endsWith'])}({s()})",
                lambda: f"{s()}.matches({self._pick(_PATTERNS)})",
                lambda: f"{s()} in {self.list_string()}",
                lambda: f"{self.int()} in {self.list_int()}",
                lambda: f"{self.dyn()} in {self.list_dyn()}",
                lambda: f"{s()} in {self.map()}",
                self._quantifier,
                lambda: f"{self.list_int()}.isSorted()",
                lambda: f"{self.list_dyn()}.includes({self.dyn()})",
                lambda: (
                    f"sets.{self._pick(['contains', 'equivalent', 'intersects'])}({self.list_int()}, {self.list_int()})"
                ),
                lambda: f"{self.optional()}.hasValue()",
                lambda: f"{self._pick(['isQuantity', 'isSemver', 'isURL', 'isIP', 'isCIDR'])}({s()})",
                lambda: (
                    f"ip({self._pick(_IPS)}).{self._pick(['isLoopback', 'isGlobalUnicast', 'isUnspecified', 'isLinkLocalUnicast', 'isLinkLocalMulticast'])}()"
                ),
                lambda: f"cidr({self._pick(_CIDRS)}).containsIP({self._pick(_IPS)})",
                lambda: f"cidr({self._pick(_CIDRS)}).containsCIDR(cidr({self._pick(_CIDRS)}))",
                lambda: f"format.{self._pick(_FORMATS)}().validate({s()}).hasValue()",
                lambda: (
                    f"type({self.dyn()}) == {self._pick(['int', 'string', 'list', 'map', 'type', 'net.IP', 'bool', 'null_type'])}"
                ),
                lambda: f"bool({self._pick(_BOOLS)})",
                lambda: self._bind("bool"),
                lambda: f"{self.list_int()} {self._pick(['==', '!='])} {self.list_int()}",
                lambda: f"{self.map()} == {self.map()}",
                lambda: f"{self.optional()} == {self.optional()}",
                lambda: f"{self.ip()} == {self.ip()}",
            ],
        )

    def _relation(self) -> str:
        return str(self._pick(["<", "<=", ">", ">=", "==", "!="]))

    def _paren(self, text: str) -> str:
        return f"({text})"

    def _quantifier(self) -> str:
        kind = self._pick(["all", "exists", "exists_one"])
        source, of = self._pick(
            [(self.list_int, "int"), (self.list_string, "string"), (self.list_dyn, "dyn"), (self.map, "string")]
        )
        over, name = source(), self._name()
        if self._random.random() < 0.25:
            second = name + "b"
            kinds = [(name, "string" if source == self.map else "int"), (second, "dyn" if source == self.map else of)]
            return f"{over}.{kind}({name}, {second}, {self._with(kinds, self.bool)})"
        return f"{over}.{kind}({name}, {self._with([(name, of)], self.bool)})"

    def _bind(self, kind: str) -> str:
        name = self._name()
        of = self._pick(["int", "string", "bool"])
        value = {"int": self.int, "string": self.string, "bool": self.bool}[of]()
        body = {"bool": self.bool, "int": self.int}[kind]
        return f"cel.bind({name}, {value}, {self._with([(name, of)], body)})"

    def int(self) -> str:
        i = self.int
        return self._choose(
            [
                lambda: self._pick(_INTS),
                lambda: self._pick(["1", "2", "3"]),
                lambda: self._attribute("numa", "minus"),
                lambda: self._variable("int", "1"),
            ],
            [
                lambda: f"({i()} {self._pick(['+', '-', '*', '/', '%'])} {i()})",
                lambda: f"-{self._paren(i())}",
                lambda: f"{self.string()}.size()",
                lambda: f"size({self.list_dyn()})",
                lambda: f"{self.map()}.size()",
                lambda: f"({self.bool()} ? {i()} : {i()})",
                lambda: f"int({self.number()})",
                lambda: f"int({self.string()})",
                lambda: f"{self.quantity()}.{self._pick(_TO_INTEGER)}",
                lambda: f"sign({self.quantity()})",
                lambda: f"{self.semver()}.{self._pick(['major()', 'minor()', 'patch()'])}",
                lambda: f"{self.semver()}.compareTo({self.semver()})",
                lambda: f"{self.list_int()}.{self._pick(['max', 'min', 'sum'])}()",
                lambda: f"{self.list_int()}[{i()}]",
                lambda: f"{self.list_int()}.{self._pick(['indexOf', 'lastIndexOf'])}({i()})",
                lambda: f"{self.string()}.{self._pick(['indexOf', 'lastIndexOf'])}({self.string()})",
                lambda: f"{self.string()}.{self._pick(['indexOf', 'lastIndexOf'])}({self.string()}, {i()})",
                lambda: f"{self.list_int()}.{self._pick(['first', 'last'])}().value()",
                lambda: f"{self.optional()}.orValue({i()})",
                lambda: f"{self.timestamp()}.{self._pick(_CALLS_TO_TIME)}({self._pick(_ZONES)})",
                lambda: (
                    f"{self.duration()}.{self._pick(['getHours', 'getMinutes', 'getSeconds', 'getMilliseconds'])}()"
                ),
                lambda: f"ip({self._pick(_IPS)}).family()",
                lambda: f"cidr({self._pick(_CIDRS)}).prefixLength()",
                lambda: self._bind("int"),
            ],
        )

    def number(self) -> str:
        return str(self._pick([self.int, self.double, self.uint])())

    def uint(self) -> str:
        return self._choose(
            [lambda: self._pick(_UINTS)],
            [
                lambda: f"({self.uint()} {self._pick(['+', '-', '*', '/', '%'])} {self.uint()})",
                lambda: f"uint({self.number()})",
            ],
        )

    def double(self) -> str:
        return self._choose(
            [lambda: self._pick(_DOUBLES)],
            [
                lambda: f"({self.double()} {self._pick(['+', '-', '*', '/'])} {self.double()})",
                lambda: f"double({self.number()})",
                lambda: f"double({self.string()})",
                lambda: f"{self.quantity()}.asApproximateFloat()",
            ],
        )

    def string(self) -> str:
        s = self.string
        return self._choose(
            [
                lambda: self._pick(_STRINGS),
                lambda: self._attribute("productName", "uuid", "text", "resource.kubernetes.io/pcieRoot"),
                lambda: self._variable("string", '"b"'),
                lambda: "device.driver",
            ],
            [
                lambda: f"({s()} + {s()})",
                lambda: f"({self.bool()} ? {s()} : {s()})",
                lambda: (
                    f"string({self._pick([self.int, self.double, self.bool, self.uint, self.duration, self.timestamp, s, self.ip])()})"
                ),
                lambda: f"{s()}.{self._pick(['lowerAscii', 'upperAscii', 'trim'])}()",
                lambda: f"{s()}.substring({self.int()})",
                lambda: f"{s()}.substring({self.int()}, {self.int()})",
                lambda: f"{s()}.charAt({self.int()})",
                lambda: f"{s()}.replace({s()}, {s()})",
                lambda: f"{s()}.replace({s()}, {s()}, {self.int()})",
                lambda: f"{self.list_string()}.join({self._pick(['', s()])})",
                lambda: f"strings.quote({s()})",
                lambda: f"{s()}.find({self._pick(_PATTERNS)})",
                lambda: f'"%s|%s".format([{self.dyn()}, {self.dyn()}])',
                lambda: f'"{self._pick(_DOUBLE_CLAUSES)}".format([{self.double()}])',
                lambda: f'"{self._pick(_INT_CLAUSES)}".format([{self.int()}])',
                lambda: (
                    f"url({self._pick(_URLS)}).{self._pick(['getScheme', 'getHost', 'getHostname', 'getPort', 'getEscapedPath'])}()"
                ),
                lambda: f"{self.list_string()}[{self.int()}]",
                lambda: f"{self.map()}[{s()}]" if self._random.random() < 0.2 else s(),
            ],
        )

    def quantity(self) -> str:
        return self._choose(
            [
                lambda: f"quantity({self._pick(_QUANTITIES)})",
                lambda: f'device.capacity["{DRIVER}"].{self._pick(_CAPACITIES)}',
                lambda: 'device.capacity["other.io"].mem',
            ],
            [lambda: f"{self.quantity()}.{self._pick(['add', 'sub'])}({self._pick([self.quantity, self.int])()})"],
        )

    def semver(self) -> str:
        return self._choose(
            [lambda: f"semver({self._pick(_VERSIONS)})", lambda: self._attribute("driverVersion", "rc")],
            [lambda: f"semver({self._pick(_VERSIONS)})"],
        )

    def duration(self) -> str:
        return self._choose(
            [lambda: f"duration({self._pick(_DURATIONS)})"],
            [
                lambda: f"({self.duration()} {self._pick(['+', '-'])} {self.duration()})",
                lambda: f"({self.timestamp()} - {self.timestamp()})",
            ],
        )

    def timestamp(self) -> str:
        return self._choose(
            [lambda: f"timestamp({self._pick([*_TIMES, '1700000000', '-1'])})"],
            [lambda: f"({self.timestamp()} {self._pick(['+', '-'])} {self.duration()})"],
        )

    def ip(self) -> str:
        return str(
            self._pick(
                [
                    f"ip({self._pick(_IPS)})",
                    f"cidr({self._pick(_CIDRS)}).ip()",
                    f"cidr({self._pick(_CIDRS)}).masked().ip()",
                ]
            )
        )

    def optional(self) -> str:
        return self._choose(
            [
                lambda: "optional.none()",
                lambda: f"optional.of({self.int()})",
                lambda: f'device.attributes["{DRIVER}"].?{self._pick(_OPTIONAL_NAMES)}',
                lambda: f'device.attributes[?"{self._pick(_DOMAINS)}"].{self._pick(_OPTIONAL_NAMES)}',
            ],
            [
                lambda: f"optional.ofNonZeroValue({self.int()})",
                lambda: f"{self.list_int()}[?{self.int()}]",
                lambda: f"{self.map()}[?{self.string()}]",
                lambda: f"{self.optional()}.or({self.optional()})",
                lambda: f"{self.optional()}.optMap(o, {self._with([('o', 'int')], self.int)})",
                lambda: f"{self.optional()}.optFlatMap(o, {self._with([('o', 'int')], self.optional)})",
                lambda: f"{self.list_int()}.{self._pick(['first', 'last'])}()",
            ],
        )

    def list_int(self) -> str:
        return self._list("int", self.int, ["ids"])

    def list_string(self) -> str:
        return self._list("string", self.string, ["zones"])

    def _list(self, kind: str, element: Callable[[], str], names: list[str]) -> str:
        def again() -> str:
            return self._list(kind, element, names)

        def mapped() -> str:
            name, over, of = self._name(), *self._pick([(self.list_int(), "int"), (self.list_string(), "string")])
            body = self._with([(name, of)], element)
            if self._random.random() < 0.3:
                return f"{over}.map({name}, {self._with([(name, of)], self.bool)}, {body})"
            return f"{over}.map({name}, {body})"

        def filtered() -> str:
            over, name = again(), self._name()
            return f"{over}.filter({name}, {self._with([(name, kind)], self.bool)})"

        def transformed() -> str:
            over, name = again(), self._name()
            kinds = [(name, "int"), (name + "b", kind)]
            return f"{over}.transformList({name}, {name}b, {self._with(kinds, element)})"

        def sorted_by() -> str:
            over, name = again(), self._name()
            return f"{over}.sortBy({name}, {self._with([(name, kind)], self._pick([self.int, self.string]))})"

        return self._choose(
            [
                lambda: (
                    f"[{', '.join(self._pick(_INTS if kind == 'int' else _STRINGS) for _ in range(self._random.randrange(4)))}]"
                ),
                lambda: self._attribute(*names),
            ],
            [
                lambda: f"[{', '.join(element() for _ in range(self._random.randrange(4)))}]",
                lambda: f"({again()} + {again()})",
                mapped,
                filtered,
                transformed,
                sorted_by,
                lambda: f"{again()}.{self._pick(['sort', 'reverse', 'distinct'])}()",
                lambda: f"{again()}.slice({self.int()}, {self.int()})",
                lambda: f"[{again()}, {again()}].flatten()",
                lambda: (
                    f"[?{self.optional()}, ?{self.optional()}]"
                    if kind == "int"
                    else f"{self.string()}.split({self.string()})"
                ),
                lambda: (
                    f"lists.range({self._pick(['0', '3', '-1'])})"
                    if kind == "int"
                    else f"{self.string()}.findAll({self._pick(_PATTERNS)})"
                ),
            ],
        )

    def list_dyn(self) -> str:
        return str(
            self._pick(
                [
                    self.list_int,
                    self.list_string,
                    lambda: f"[{self._dyn_call()}, {self._dyn_call()}]",
                    lambda: self._attribute("flags", "versions"),
                ]
            )()
        )

    def _dyn_call(self) -> str:
        return f"dyn({self.dyn()})"

    def map(self) -> str:
        def entries() -> str:
            count = self._random.randrange(3)
            return "{" + ", ".join(f"{self._pick(_STRINGS)}: {self.int()}" for _ in range(count)) + "}"

        def transformed() -> str:
            over, name = self.map(), self._name()
            kinds = [(name, "string"), (name + "b", "int")]
            return f"{over}.transformMap({name}, {name}b, {self._with(kinds, self.int)})"

        def from_entries() -> str:
            over, name = self.list_string(), self._name()
            kinds = [(name, "int"), (name + "b", "string")]
            return f"{over}.transformMapEntry({name}, {name}b, {{{name}b: {self._with(kinds, self.int)}}})"

        return self._choose([entries], [entries, transformed, from_entries])

    def dyn(self) -> str:
        return self._choose(
            [
                lambda: self._attribute("productName", "numa", "healthy", "driverVersion", "zones", "ids", "missing", "flags"),
                lambda: self._variable("dyn", "null"),
                lambda: self._pick(["null", "int", "b'a\\xff'", "1", "1u", "1.0", '"a"', "true", "{}", "[]", "dyn(1)", "dyn({1: 2})"]),
            ],
            [
                self.int, self.string, self.bool, self.double, self.uint, self.list_int, self.list_string, self.map,
                self.quantity, self.semver, self.duration, self.timestamp, self.ip, self.optional,
                lambda: f"dyn({self.dyn()})",
                lambda: f"{self._dyn_call()}[{self.dyn()}]",
                lambda: f"{self._dyn_call()}.{self._pick(['a', 'size()', 'sum()', 'max()', 'isSorted()', 'lowerAscii()', 'value()', 'getHours()', 'first()', 'sort()', 'ip()'])}",
                lambda: f"({self._dyn_call()} {self._pick(['+', '-', '*', '/', '%', '<', '>='])} {self._dyn_call()})",
                lambda: f"bytes({self.string()})",
                lambda: f"type({self.dyn()})",
            ],
        )  # fmt: skip
