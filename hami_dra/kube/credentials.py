"""Address of an API server and our identity there: kubeconfig files and in-pod service accounts.

Called by `http.HttpCluster`. Out: an `Access`; raises `ConfigError`. No secret is ever part of a
message or a repr.

Tokens, token files, client certificates and passwords are read here, and programs of `exec` users
are run by `exec_plugin`: that is little code, leaves no temporary key files behind, does not block
the event loop, and spares every installation the official client (75 MB). Only an `auth-provider`
needs that one (`auth_provider`).
"""

import base64
import os
import ssl
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from hami_dra.api.errors import ConfigError
from hami_dra.kube import kubeconfig
from hami_dra.kube.auth_provider import ProvidedIdentity
from hami_dra.kube.exec_plugin import ExecIdentity, is_token, plugin_of
from hami_dra.kube.proxies import checked_proxy, is_web_address, proxy_from_environment

_HEADER_KEY: Final = "!#$&'*+^`|"
"""Characters of a header's name, besides letters, digits and -._~, as in client-go."""
SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_TOKEN_FILE_SECONDS: Final = 60.0
"""Kubelet renews projected tokens long before they expire; client-go also reads them once a minute."""


class Identity(Protocol):
    """Returns the value of the Authorization header, or empty. `renew`: the last value was refused."""

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
                text = kubeconfig.content(self.path, "token file").decode(errors="replace")
                self._token = _token(text, f"token file {self.path}")
            except ConfigError:
                # The file is being replaced right now; the old token may still work.
                if not self._token:
                    raise
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
    impersonation: tuple[tuple[str, str], ...] = ()
    """Headers of every request, for a user who acts as another."""


def in_cluster(folder: Path | None = None, environment: Mapping[str, str] = os.environ) -> Access:
    """Return the access of the pod's service account. `folder` defaults to where kubelet mounts it."""
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
    found = kubeconfig.chosen(path, context, environment)
    where, cluster, user = found.where, found.cluster, found.user
    server = _server(found)
    authority = _bytes(cluster, "certificate-authority", where)
    identity = _identity(found, authority)
    certificate, key = _bytes(user, "client-certificate", where), _bytes(user, "client-key", where)
    if bool(certificate) != bool(key):
        raise ConfigError(f"kubeconfig {where}: a user needs client-certificate and client-key, and has one of them")
    if isinstance(identity, ExecIdentity) and identity.credential.certificate:
        certificate, key = identity.credential.certificate, identity.credential.key
    proxy = checked_proxy(cluster.get("proxy-url", ""), f"kubeconfig {where}: proxy-url")
    return Access(
        server=server,
        identity=identity,
        tls=_tls(
            authority=authority, certificate=certificate, key=key, verify=not cluster.get("insecure-skip-tls-verify")
        )
        if server.startswith("https:")
        else None,
        server_name=cluster.get("tls-server-name", ""),
        proxy=proxy or proxy_from_environment(server, environment),
        namespace=found.context.get("namespace") or "default",
        impersonation=_impersonation(user, where),
    )


def cluster_title(path: str | None = None, context: str | None = None) -> str:
    """Return context and server that `chosen_access` chooses, without logging in. Raises ConfigError."""
    if _means_pod(path, context):
        return f"the one this pod runs in, {in_cluster().server}"
    found = kubeconfig.chosen(path, context, os.environ)
    return f"context {found.name}, {_server(found)}"


def _server(found: kubeconfig.Chosen) -> str:
    server: str = found.cluster.get("server", "").strip().rstrip("/")
    if not server:
        raise ConfigError(f"kubeconfig {found.where}: cluster {found.context.get('cluster')!r} has no server")
    if not is_web_address(server):
        raise ConfigError(
            f"kubeconfig {found.where}: server of cluster {found.context.get('cluster')!r} is not a valid address; "
            "write it like https://10.0.0.1:6443"
        )
    return server


def _impersonation(user: dict[str, Any], where: str) -> tuple[tuple[str, str], ...]:
    """Return the headers of a user who acts as another (`as`, ...), as client-go sends them."""
    headers = [("Impersonate-User", user.get("as", "")), ("Impersonate-Uid", user.get("as-uid", ""))]
    headers += [("Impersonate-Group", group) for group in user.get("as-groups", ())]
    headers += [
        (f"Impersonate-Extra-{quote(key, safe=_HEADER_KEY)}", value)
        for key, values in user.get("as-user-extra", {}).items()
        for value in values
    ]
    present = tuple((name, value) for name, value in headers if value)
    if present and not user.get("as"):
        raise ConfigError(f"kubeconfig {where}: as-uid, as-groups and as-user-extra need a user to act as (as)")
    if any(not value.isprintable() or not name.isprintable() for name, value in present):
        raise ConfigError(f"kubeconfig {where}: as, as-uid, as-groups, as-user-extra: a line break or the like inside")
    return present


def chosen_access(path: str | None = None, context: str | None = None) -> Access:
    """Return the access of the given kubeconfig or context, else of the pod's service account, else
    of the default kubeconfig. Raises ConfigError.
    """
    return in_cluster() if _means_pod(path, context) else from_kubeconfig(path, context)


def _means_pod(path: str | None, context: str | None) -> bool:
    return path is None and context is None and is_in_cluster()


def default_namespace(path: str | None = None, context: str | None = None) -> str:
    """Return the namespace of the context, or of the service account, without connecting.

    As `chosen_access` chooses between them. Raises ConfigError.
    """
    return in_cluster().namespace if _means_pod(path, context) else kubeconfig.namespace_of(path, context)


def _identity(found: kubeconfig.Chosen, authority: bytes | None) -> Identity:
    user, name = found.user, found.context.get("user", "")
    if user.get("token", "").strip():
        return FixedIdentity(f"Bearer {_token(user['token'], f'kubeconfig {found.where}: token of user {name!r}')}")
    if user.get("tokenFile"):
        return TokenFile(user[".folder"] / user["tokenFile"])
    if "exec" in user:
        return ExecIdentity(plugin_of(name, user, found.cluster, authority))
    if user.get("auth-provider"):
        return ProvidedIdentity(found)
    if user.get("username") and "password" in user:
        pair = f"{user['username']}:{user['password']}".encode(errors="replace")
        return FixedIdentity("Basic " + base64.b64encode(pair).decode())
    return FixedIdentity()


def _token(text: str, what: str) -> str:
    """Return a token without the blanks around it. Raises ConfigError if no header can hold it."""
    token = text.strip()
    if not is_token(token):
        raise ConfigError(f"{what}: not a token: it is empty, or has a line break, a blank or the like inside")
    return token


def _bytes(entry: dict[str, Any], name: str, where: str) -> bytes | None:
    """Return `<name>-data` (base64), else the content of `<name>` (path relative to its kubeconfig)."""
    if data := entry.get(f"{name}-data"):
        try:
            return base64.b64decode(data, validate=True)
        except ValueError:
            raise ConfigError(f"kubeconfig {where}: {name}-data is not base64") from None
    if path := entry.get(name):
        return kubeconfig.content(entry[".folder"] / path, f"kubeconfig {where}: {name}")
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
