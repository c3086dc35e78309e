"""Objects of which one text, list or map is large: for every such field of every Struct, found by its schema.

A field that is added to a Struct is there by itself. Pure.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import inspect

from hami_dra.api import kinds
from hami_dra.api.meta import LOCAL_VOLUME, UNREADABLE
from hami_dra.kube.decoding import read_object

HOST = "kubernetes.io/hostname"
TEXT = "<text>"
VALID: dict[str, dict[str, Any]] = {
    "PodAffinityTerm": {"topologyKey": HOST, "namespaceSelector": {}, "labelSelector": {"matchLabels": {"app": TEXT}}},
    "TopologySpreadConstraint": {
        "topologyKey": HOST,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": {"app": TEXT}},
    },
    "LabelSelectorRequirement": {"operator": "NotIn", "values": ["none"]},
    "NodeSelectorRequirement": {"operator": "NotIn", "values": ["none"]},
    "Toleration": {"operator": "Exists"},
    "ContainerPort": {"hostPort": 9, "containerPort": 9, "protocol": "TCP"},
    "Container": {"name": "main"},
    "Volume": {"name": "disk", "persistentVolumeClaim": {"claimName": TEXT}},
    "DeviceRequest": {"name": "card", "exactly": {"deviceClassName": "gpu", "count": 1}},
    "CELDeviceSelector": {"expression": "true"},
    "WeightedPodAffinityTerm": {"weight": 1, "podAffinityTerm": {}},
    "PreferredSchedulingTerm": {"weight": 1},
    "GangSchedulingPolicy": {"minCount": 1},
}
"""What makes an entry one that decisions read, by the name of its Struct."""
TENANTS = tuple(kind for kind in kinds.ALL if kind.reduce is not None)
"""The kinds that tenants write and that are watched."""
Make = Callable[[int, str], Any]
"""From a number of bytes, and a text that makes the object unlike others."""


@dataclass(frozen=True)
class Place:
    kind: kinds.Kind[Any]
    path: str
    value: Make

    def __str__(self) -> str:
        return f"{self.kind.resource}:{self.path}"

    def document(self, name: str, size: int) -> dict[str, Any]:
        """Return an object whose field at `path` has about `size` bytes of JSON."""
        document = merged(base(self.kind, name), nested(self.path, self.value(size, name)))
        return _complete(inspect.type_info(self.kind.type), document)

    def body(self, name: str, size: int) -> bytes:
        return msgspec.json.encode(self.document(name, size))


def largest(places: Sequence[Place], name: str, rest: dict[str, Any]) -> dict[str, Any]:
    """Return an object of which these fields are together as large as is accepted; the rest is as in `rest`."""
    found = rest
    least, most = 0, 200_000
    while most - least > max(16, least // 50):
        middle = (least + most) // 2
        document = merged(functools.reduce(merged, [place.document(name, middle) for place in places]), rest)
        if read_object(places[0].kind, msgspec.json.encode(document))[1]:
            most = middle
        else:
            least, found = middle, document
    return found


def base(kind, name, namespace="evil"):
    where = {"namespace": namespace} if kind.namespaced else {}
    return {"metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": "5", **where}}


def places(kind: kinds.Kind[Any]) -> list[Place]:
    """Every text, list and map below the object, `[]` for the entry of a list and `{}` for that of a map."""
    found = {path: Place(kind, path, make) for path, make in _places(inspect.type_info(kind.type), "")}
    return [found[path] for path in sorted(found)]


def _places(of: inspect.Type, path: str) -> Iterator[tuple[str, Make]]:
    match of:
        case inspect.StructType():
            for field in of.fields:
                ours = field.encode_name in (UNREADABLE, LOCAL_VOLUME)
                if (path or field.encode_name not in ("apiVersion", "kind")) and not ours:
                    yield from _places(field.type, f"{path}.{field.encode_name}".lstrip("."))
        case inspect.VarTupleType(item_type=item) | inspect.ListType(item_type=item):
            yield path, lambda size, seed: _list(item, size, seed)
            yield from _places(item, f"{path}[]")
        case inspect.DictType(value_type=value):
            yield path, lambda size, seed: _map(value, size, seed)
            yield from _places(value, f"{path}{{}}")
        case inspect.UnionType(types=types):
            for each in types:
                yield from _places(each, path)
        case inspect.StrType():
            yield path, lambda size, seed: f"{seed}-".ljust(size, "x")
        case inspect.RawType():
            yield path, lambda size, seed: {seed: "x" * size}


def _list(item: inspect.Type, size: int, seed: str) -> list[Any]:
    one = len(msgspec.json.encode(_entry(item, f"{seed}-{size}"))) + 1
    return [_entry(item, f"{seed}-{number}") for number in range(max(1, size // one))]


def _map(value: inspect.Type, size: int, seed: str) -> dict[str, Any]:
    one = len(msgspec.json.encode({f"{seed}-{size}": _entry(value, "1")}))
    return {f"{seed}-{number}": _entry(value, "1") for number in range(max(1, size // one))}


def _entry(of: inspect.Type, text: str) -> Any:
    """Return a small value of the type, with the text in it wherever there is a text."""
    match of:
        case inspect.StructType():
            texts = [field for field in of.fields if field.required or isinstance(field.type, inspect.StrType)]
            whole = {field.encode_name: _entry(field.type, text) for field in texts[:3] or of.fields[:1]}
            return whole | {key: each for key, each in _valid(of, text).items() if key != "name"}
        case inspect.UnionType(types=types):
            return _entry(next(each for each in types if not isinstance(each, inspect.NoneType)), text)
        case inspect.StrType():
            return text
        case inspect.IntType() | inspect.FloatType():
            return 1
        case inspect.BoolType():
            return True
        case inspect.VarTupleType(item_type=item):
            return [_entry(item, text)]
        case inspect.DictType(value_type=value):
            return {text: _entry(value, text)}
    return {}


def _complete(of: inspect.Type, value: Any) -> Any:
    """Add the fields that an object must have."""
    match of:
        case inspect.UnionType(types=types):
            kinds_of_it = {dict: (inspect.StructType, inspect.DictType), list: inspect.VarTupleType}
            wanted = kinds_of_it.get(type(value))
            return next((_complete(each, value) for each in types if wanted and isinstance(each, wanted)), value)
        case inspect.StructType():
            types = {field.encode_name: field.type for field in of.fields}
            required = {field.encode_name: _entry(field.type, "a") for field in of.fields if field.required}
            whole = {**required, **_valid(of, "a"), **value}
            return {key: _complete(types[key], each) for key, each in whole.items()}
        case inspect.VarTupleType(item_type=item):
            return [_complete(item, each) for each in value]
        case inspect.DictType(value_type=item):
            return {key: _complete(item, each) for key, each in value.items()}
    return value


def _valid(of: inspect.StructType, text: str) -> dict[str, Any]:
    return _filled(VALID.get(of.cls.__name__, {}), text)


def _filled(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {key: _filled(each, text) for key, each in value.items()}
    return text if value == TEXT else value


def nested(path: str, value: Any) -> dict[str, Any]:
    """
    >>> nested("spec.terms[].key", "app")
    {'spec': {'terms': [{'key': 'app'}]}}
    """
    first, _, rest = path.partition(".")
    inner = nested(rest, value) if rest else value
    name = first.rstrip("[]{}")
    for mark in reversed([first[i : i + 2] for i in range(len(name), len(first), 2)]):
        inner = [inner] if mark == "[]" else {"key": inner}
    return {name: inner}


def merged(one: Any, other: Any) -> Any:
    """Return `one` with `other` in it: maps are merged, lists joined entry by entry."""
    if isinstance(one, dict) and isinstance(other, dict):
        return {**one, **{key: merged(one[key], value) if key in one else value for key, value in other.items()}}
    if isinstance(one, list) and isinstance(other, list):
        return [merged(first, second) for first, second in zip(one, other, strict=False)] + max(one, other, key=len)[
            min(len(one), len(other)) :
        ]
    return max(one, other, key=len) if isinstance(one, str) and isinstance(other, str) else other


ALL = [place for kind in TENANTS for place in places(kind)]
