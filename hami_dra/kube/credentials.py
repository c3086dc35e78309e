"""Address of an API server and our identity there: kubeconfig files and in-pod service accounts.

Called by `http.HttpCluster`. Out: an `Access`; raises `ConfigError`. No secret is ever part of a
message or a repr.

Tokens, token files, client certificates and passwords are read here, and programs of `exec` users
are run by `exec_plugin`: that is little code, leaves no temporary key files behind, does not block
the event loop, and spares every installation the official client (75 MB).
"""

import base64
import binascii
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from hami_dra.kube.exec_plugin import ExecIdentity, plugin_of
from hami_dra.kube.protocol import ConfigError

_Loader: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""PyYAML without libyaml is slower, with the same results."""
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_FILE_SECONDS: Final = 60.0
"""Kubelet renews projected tokens long before they expire; client-go also reads them once a
minute.
"""


class Identity(Protocol):
    """Returns the value of the Authorization header, or empty. `renew`: the last value was
    refused.
    """

    async def header(self, *, renew: bool = False) -> str: ...


@dataclass(frozen=True, slots=True)
class FixedIdentity:
    value: str = field(default="", repr=False)

    async def header(self, *, renew: bool = False) -> str:  # noqa: ARG002 (nothing to renew)
        return self.value


@dataclass(slots=True)
class TokenFile:
    """A token file, read again once a minute, and immediately after a refusal."""

    path: Path
    clock: Callable[[], float] = time.monotonic
    _token: str = field(default="", repr=False)
    _read_at: float = float("-inf")

    async def header(self, *, renew: bool = False) -> str:
        now = self.clock()
        if renew or now - self._read_at >= _TOKEN_FILE_SECONDS:
            try:
                self._token = self.path.read_text(encoding="utf-8").strip()
            except OSError as error:
                # The file is being replaced right now; the old token may still work.
                if not self._token:
                    raise ConfigError(f"token file {self.path}: {error.strerror}") from None
            self._read_at = now
        return f"Bearer {self._token}"


@dataclass(frozen=True, slots=True)
class Access:
    """Address and credentials of an API server.

    `tls` is None for http:// servers. `server_name`: expect this name in the server's certificate.
    """

    server: str
    identity: Identity = FixedIdentity()
    tls: ssl.SSLContext | None = None
    server_name: str = ""
    proxy: str = field(default="", repr=False)  # may contain a password
    namespace: str = "default"


def in_cluster(folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> Access:
    """Return the access of the pod's service account.

    `folder` defaults to where kubelet mounts it.
    """
    folder = folder or SERVICE_ACCOUNT
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT")
    if not host or not port:
        raise ConfigError(
            "not in a cluster: KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT are not set; use --kubeconfig"
        )
    token, authority = folder / "token", folder / "ca.crt"
    for path in (token, authority):
        if not path.is_file():
            raise ConfigError(f"{path} is missing: does the pod have automountServiceAccountToken: false?")
    namespace = folder / "namespace"
    return Access(
        server=f"https://{f'[{host}]' if ':' in host else host}:{port}",
        identity=TokenFile(token),
        tls=_tls(authority=authority.read_bytes()),
        namespace=namespace.read_text(encoding="utf-8").strip() if namespace.is_file() else "default",
    )


def is_in_cluster(environment: Mapping[str, str] = os.environ) -> bool:
    return "KUBERNETES_SERVICE_HOST" in environment


def from_kubeconfig(
    path: str | None = None, context: str | None = None, environment: Mapping[str, str] = os.environ
) -> Access:
    """Return the access that a kubeconfig describes.

    `path` None: $KUBECONFIG (several files are merged, the first definition of a name wins), else
    ~/.kube/config.
    """
    where = _where(path, environment)
    config = _merged(where)
    name = context or config["current-context"]
    if not name:
        raise ConfigError(f"kubeconfig {where}: no current-context; name one with --context")
    chosen = _named(config, "contexts", name, where)
    cluster = _named(config, "clusters", chosen.get("cluster", ""), where)
    user = _named(config, "users", chosen["user"], where) if chosen.get("user") else {}
    if not cluster.get("server"):
        raise ConfigError(f"kubeconfig {where}: cluster {chosen.get('cluster')!r} has no server")
    authority = _bytes(cluster, "certificate-authority", where)
    identity = _identity(chosen.get("user", ""), user, cluster, authority)
    certificate, key = _bytes(user, "client-certificate", where), _bytes(user, "client-key", where)
    if isinstance(identity, ExecIdentity) and identity.credential.certificate:
        certificate, key = identity.credential.certificate, identity.credential.key
    secure = str(cluster["server"]).startswith("https:")
    return Access(
        server=str(cluster["server"]).rstrip("/"),
        identity=identity,
        tls=_tls(
            authority=authority,
            certificate=certificate,
            key=key,
            verify=not cluster.get("insecure-skip-tls-verify"),
        )
        if secure
        else None,
        server_name=str(cluster.get("tls-server-name", "")),
        proxy=str(cluster.get("proxy-url", "")),
        namespace=str(chosen.get("namespace") or "default"),
    )


def chosen_access(path: str | None = None, context: str | None = None) -> Access:
    """Return the access of the given kubeconfig or context, else of the pod's service account, else
    of the default kubeconfig. Raises ConfigError.
    """
    return in_cluster() if _means_pod(path, context) else from_kubeconfig(path, context)


def _means_pod(path: str | None, context: str | None) -> bool:
    return path is None and context is None and is_in_cluster()


def context_names(path: str | None = None, environment: Mapping[str, str] = os.environ) -> list[str]:
    """Return the names of the contexts in the kubeconfig that `from_kubeconfig` reads."""
    return sorted(_merged(_where(path, environment))["contexts"])


def default_namespace(path: str | None = None, context: str | None = None) -> str:
    """Return the namespace of the context, or of the service account, without connecting.

    As `chosen_access` chooses between them. Raises ConfigError.
    """
    if _means_pod(path, context):
        return in_cluster().namespace
    where = _where(path, os.environ)
    config = _merged(where)
    name = context or config["current-context"]
    chosen = _named(config, "contexts", name, where) if name else {}
    return str(chosen.get("namespace") or "default")


def _where(path: str | None, environment: Mapping[str, str]) -> str:
    """Return the paths of the kubeconfig files, as in $KUBECONFIG."""
    return path or environment.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")


def _merged(where: str) -> dict[str, Any]:
    """Merge kubeconfig files. Entries carry their file's folder in `.folder`, for relative
    paths.
    """
    paths = [Path(part).expanduser() for part in where.split(os.pathsep) if part]
    merged: dict[str, Any] = {"contexts": {}, "clusters": {}, "users": {}, "current-context": ""}
    found = False
    for path in paths:
        if len(paths) > 1 and not path.exists():
            continue  # like kubectl, skip missing files of a list
        try:
            document = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader) or {}  # noqa: S506 (a safe one)
        except OSError as error:
            raise ConfigError(f"kubeconfig {path}: {error.strerror}; set --kubeconfig or KUBECONFIG") from None
        except (yaml.YAMLError, UnicodeDecodeError):
            # The parser's message would quote the file, which contains secrets.
            raise ConfigError(f"kubeconfig {path}: not a YAML file") from None
        if not isinstance(document, dict):
            raise ConfigError(f"kubeconfig {path}: not a kubeconfig (kind: Config) file")
        found = True
        merged["current-context"] = merged["current-context"] or document.get("current-context") or ""
        for section, inner in (("contexts", "context"), ("clusters", "cluster"), ("users", "user")):
            for entry in document.get(section) or ():
                value = entry.get(inner) if isinstance(entry, dict) else None
                if isinstance(value, dict) and entry.get("name"):
                    merged[section].setdefault(entry["name"], {**value, ".folder": path.parent})
    if not found:
        raise ConfigError(f"kubeconfig: none of {', '.join(map(str, paths))} exists")
    return merged


def _named(config: dict[str, Any], section: str, name: str, where: str) -> dict[str, Any]:
    entry: dict[str, Any] | None = config[section].get(name)
    if entry is None:
        known = ", ".join(sorted(config[section])) or "none"
        raise ConfigError(f"kubeconfig {where}: {name!r} is not among its {section}: {known}")
    return entry


def _identity(name: str, user: dict[str, Any], cluster: dict[str, Any], authority: bytes | None) -> Identity:
    if user.get("token"):
        return FixedIdentity(f"Bearer {user['token']}")
    if user.get("tokenFile"):
        return TokenFile(user[".folder"] / Path(user["tokenFile"]).expanduser())
    if "exec" in user:
        return ExecIdentity(plugin_of(name, user, cluster, authority))
    if provider := user.get("auth-provider"):
        return _provided(name, provider)
    if user.get("username") and "password" in user:
        pair = f"{user['username']}:{user['password']}".encode()
        return FixedIdentity("Basic " + base64.b64encode(pair).decode())
    return FixedIdentity()


def _provided(name: str, provider: Any) -> Identity:
    """Return the token that kubectl last stored for an OIDC user. Kubernetes removed all other
    providers (client-go 1.26).
    """
    settings = provider if isinstance(provider, dict) else {}
    token = (settings.get("config") or {}).get("id-token")
    if settings.get("name") != "oidc" or not token:
        raise ConfigError(
            f"kubeconfig: user {name!r}: auth-provider {settings.get('name', '')!r} without a stored id-token is not "
            "supported; use an exec plugin, for OIDC: kubectl oidc-login (kubelogin)"
        )
    return FixedIdentity(f"Bearer {token}")


def _bytes(entry: dict[str, Any], name: str, where: str) -> bytes | None:
    """Return `<name>-data` (base64), else the content of `<name>` (path relative to its
    kubeconfig).
    """
    if data := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(str(data), validate=True)
        except binascii.Error:
            raise ConfigError(f"kubeconfig {where}: {name}-data is not base64") from None
    if path := entry.get(name):
        full = entry[".folder"] / Path(path).expanduser()
        try:
            return bytes(full.read_bytes())
        except OSError as error:
            raise ConfigError(f"kubeconfig {where}: {name} {full}: {error.strerror}") from None
    return None


def _tls(
    *, authority: bytes | None, certificate: bytes | None = None, key: bytes | None = None, verify: bool = True
) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cadata=authority.decode() if authority else None)
        # Authorities created by older tools lack an Authority Key Identifier, which Python 3.13
        # requires by default.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate and key:
            # OpenSSL reads key pairs only from files; this one exists only for the call and is
            # private (mode 0600).
            with tempfile.NamedTemporaryFile() as pair:
                pair.write(certificate + b"\n" + key)
                pair.flush()
                context.load_cert_chain(pair.name)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"TLS: the certificate authority or client certificate cannot be used: {error}") from None
    return context
