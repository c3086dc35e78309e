"""Kubeconfig files: reading, merging, and the types of their fields.

Called by `credentials`. Out: entries as dicts whose fields have the right types, without nulls;
raises `ConfigError`, which names file, entry and field, and never a value: it may be a secret.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml
from msgspec import Struct

from hami_dra.api.errors import ConfigError

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML without libyaml is slower, with the same results."""
_SECTIONS: Final = (("contexts", "context"), ("clusters", "cluster"), ("users", "user"))
_DEEPEST: Final = 50


class _Context(Struct):
    cluster: str = ""
    user: str = ""
    namespace: str = ""


class _Extension(Struct):
    name: str = ""


class _Cluster(Struct, rename="kebab"):
    server: str = ""
    certificate_authority: str = ""
    certificate_authority_data: str = ""
    insecure_skip_tls_verify: bool = False
    tls_server_name: str = ""
    proxy_url: str = ""
    disable_compression: bool = False
    extensions: list[_Extension] = []


class _Variable(Struct):
    name: str
    value: str


class _Exec(Struct, rename="camel"):
    api_version: str = ""
    command: str = ""
    args: list[str] = []
    env: list[_Variable] = []
    interactive_mode: str = ""
    install_hint: str = ""
    provide_cluster_info: bool = False


class _Provider(Struct):
    name: str = ""
    config: dict[str, str] = {}


class _User(Struct, rename="kebab"):
    token: str = ""
    token_file: str = msgspec.field(default="", name="tokenFile")
    username: str = ""
    password: str = ""
    client_certificate: str = ""
    client_certificate_data: str = ""
    client_key: str = ""
    client_key_data: str = ""
    as_user: str = msgspec.field(default="", name="as")
    as_uid: str = ""
    as_groups: list[str] = []
    as_user_extra: dict[str, list[str]] = {}
    exec: _Exec | None = None
    auth_provider: _Provider | None = None


_TYPES: Final[Mapping[str, type[Struct]]] = {"contexts": _Context, "clusters": _Cluster, "users": _User}


class Chosen(Struct, frozen=True):
    """A context with its cluster and user. Entries carry their file's folder in `.folder`."""

    where: str
    name: str
    context: dict[str, Any]
    cluster: dict[str, Any]
    user: dict[str, Any]


def chosen(path: str | None, context: str | None, environment: Mapping[str, str]) -> Chosen:
    """Return what a context names. Raises ConfigError."""
    where, config = _read(path, environment)
    name = context or config["current-context"]
    if not name:
        raise ConfigError(f"kubeconfig {where}: no current-context; name one with --context")
    entry = _named(config, "contexts", name, where)
    cluster = _named(config, "clusters", entry.get("cluster", ""), where)
    user = _named(config, "users", entry["user"], where) if entry.get("user") else {}
    return Chosen(where, name, entry, cluster, user)


def context_names(path: str | None = None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the contexts. Raises ConfigError."""
    return sorted(_read(path, environment)[1]["contexts"])


def namespace_of(path: str | None, context: str | None, environment: Mapping[str, str] = os.environ) -> str:
    """Return the namespace of a context; "default" where there is none. Raises ConfigError."""
    where, config = _read(path, environment)
    name = context or config["current-context"]
    entry = _named(config, "contexts", name, where) if name else {}
    return str(entry.get("namespace") or "default")


def content(path: Path, what: str) -> bytes:
    """Return the content of a file. `what`: file and field that name it. Raises ConfigError."""
    try:
        return path.expanduser().read_bytes()
    except OSError as error:
        raise ConfigError(f"{what} {path}: {error.strerror}") from None
    except (ValueError, RuntimeError):
        raise ConfigError(f"{what}: not the path of a file") from None


def _read(path: str | None, environment: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Return the paths, as in $KUBECONFIG, and what the files say together."""
    where = path or environment.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    paths = [Path(part) for part in where.split(os.pathsep) if part]
    if not paths:
        raise ConfigError(f"KUBECONFIG is {where!r}, which names no file; set it, or use --kubeconfig")
    merged: dict[str, Any] = {"contexts": {}, "clusters": {}, "users": {}, "current-context": ""}
    found = False
    for file in paths:
        if len(paths) > 1 and not _exists(file):
            continue  # like kubectl, skip missing files of a list
        found = True
        _merge(merged, file)
    if not found:
        raise ConfigError(f"kubeconfig: none of {', '.join(map(str, paths))} exists")
    return where, merged


def _exists(path: Path) -> bool:
    try:
        return path.expanduser().exists()
    except (ValueError, RuntimeError, OSError):
        return True  # reading it says what is wrong


def _merge(merged: dict[str, Any], path: Path) -> None:
    """Add what one file says; the first definition of a name wins."""
    document = _document(path)
    current = document.get("current-context") or ""
    if not isinstance(current, str):
        raise ConfigError(f"kubeconfig {path}: current-context must be text")
    merged["current-context"] = merged["current-context"] or current
    for section, inner in _SECTIONS:
        entries = document.get(section) or []
        if not isinstance(entries, list):
            raise ConfigError(f"kubeconfig {path}: {section} must be a list")
        for entry in entries:
            value = entry.get(inner) if isinstance(entry, dict) else None
            if not isinstance(value, dict) or not entry.get("name"):
                continue
            if not isinstance(entry["name"], str):
                raise ConfigError(f"kubeconfig {path}: a name in {section} must be text; write it in quotes")
            merged[section].setdefault(entry["name"], {**value, ".folder": path.expanduser().parent})


def _document(path: Path) -> dict[str, Any]:
    try:
        text = content(path, "kubeconfig").decode()
    except ConfigError as error:
        raise ConfigError(f"{error}; set --kubeconfig or KUBECONFIG") from None
    except UnicodeDecodeError:
        raise ConfigError(f"kubeconfig {path}: not a YAML file") from None
    try:
        document = yaml.load(text, Loader=_Loader) or {}  # noqa: S506 (a safe one)
    except (yaml.YAMLError, ValueError, RecursionError):
        # The parser's message would quote the file, which contains secrets.
        raise ConfigError(f"kubeconfig {path}: not a YAML file") from None
    if not isinstance(document, dict):
        raise ConfigError(f"kubeconfig {path}: not a kubeconfig (kind: Config) file")
    return document


def _named(config: dict[str, Any], section: str, name: str, where: str) -> dict[str, Any]:
    entry: dict[str, Any] | None = config[section].get(name)
    if entry is None:
        known = ", ".join(sorted(config[section])) or "none"
        raise ConfigError(f"kubeconfig {where}: {name!r} is not among its {section}: {known}")
    folder = entry[".folder"]
    plain = _without_nulls({key: value for key, value in entry.items() if key != ".folder"}, where, _DEEPEST)
    try:
        msgspec.convert(plain, _TYPES[section])
    except msgspec.ValidationError as error:
        reason = str(error).replace("`", "").replace("$", name)
        raise ConfigError(f"kubeconfig {where}: {section}: {reason}") from None
    return {**plain, ".folder": folder}


def _without_nulls(value: Any, where: str, depth: int) -> Any:
    """Return a copy without keys that have no value, as if they were not there."""
    if not depth:
        raise ConfigError(f"kubeconfig {where}: nested more than {_DEEPEST} levels deep")
    if isinstance(value, dict):
        # YAML allows keys of any type; JSON, which kubectl reads, has texts only
        return {str(key): _without_nulls(inner, where, depth - 1) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner, where, depth - 1) for inner in value] if isinstance(value, list) else value
