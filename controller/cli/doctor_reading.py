"""Collects the doctor's input from a live cluster: the only part of the doctor that connects to one.

Called by `hami-dra doctor`. In: a cluster. Out: documents, and the facts that only a live cluster
provides (`Live`). Anything that may not be read is left out and named. Nothing is changed: rights
are checked with SubjectAccessReviews, and the webhook with a pod that is created with `dryRun`, so
never stored.
"""

import asyncio
import base64
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from controller.cli.advised_workloads import read_workloads
from controller.cli.extras import missing_extra
from controller.cli.progress import OnProgress
from controller.cli.state import arguments_of, gang_sources_in, read_cluster
from controller.insight.doctor import ACCOUNTS, Live, Program, Raw, Right, WebhookSeen, needed_rights
from controller.reconcile.repair import ADMISSION
from controller.reconcile.runtime import taint_rule_kind
from controller.settings.common import Mode
from controller.settings.placing import DEFAULT_SCHEDULER
from controller.webhook import CONVERT_WEBHOOK, Installation, manifests
from hami_dra.api import kinds, names
from hami_dra.api.access import SUBJECT_ACCESS_REVIEW
from hami_dra.api.core import Lease, Namespace
from hami_dra.api.kinds import Kind
from hami_dra.api.meta import LabelSelector, Object
from hami_dra.api.selectors import label_selector_matches
from hami_dra.kube.documents import Document
from hami_dra.kube.protocol import ClusterError, Forbidden, NotFound

if TYPE_CHECKING:
    from hami_dra.kube.http import HttpCluster

T = TypeVar("T", bound=Object)
_AT_ONCE: Final = 8
_LEASE_CHECK: Final = "controller"
_GATE: Final = re.compile(r'^kubernetes_feature_enabled\{name="([^"]+)",stage="[^"]*"\} ([01])$', re.MULTILINE)
_MODE: Final = re.compile(r"--mode=(exclusive|native)")
_MANAGE: Final = re.compile(r"--manage=(\S+)")
_SCHEDULER_NAME: Final = re.compile(r"--scheduler-name=(\S+)")
_RUNTIME_CLASS: Final = re.compile(r"--runtime-class=([a-z]+)=(\S+)")
_CHECKS: Final = {kinds.DEVICE_TAINT_RULE: "fence", kinds.NAMESPACE: "webhook", kinds.RESOURCE_QUOTA: "quotas"}
"""Kind of objects → the check that needs them; why pods wait needs all others."""
_RESOURCE_ATTRIBUTES: Final = ("verb", "group", "resource", "subresource", "name", "namespace")
_CONVERTED_AND_REFUSED: Final = ("webhook", kinds.RUNTIME_CLASS.name)
"""Words in an API server's refusal of a dry-run pod that make it the webhook's fault."""


class Read(Struct):
    documents: list[Document]
    live: Live | None = None
    """None: files were read."""
    unread: dict[str, str] = {}
    """Name of a check → why its input could not be read."""
    mode: Mode | None = None
    """The mode in the controller's Deployment; None: no Deployment is visible."""
    managed: frozenset[str] = frozenset()
    """Drivers in the controller's Deployment that it manages in addition to our own."""
    workloads: tuple[Raw, ...] = ()
    """Deployments and their like, with kind and apiVersion."""
    gang_sources: frozenset[str] | None = None
    """Optional kinds of gangs in the controller's Deployment; None: no Deployment is visible."""
    scheduler_names: frozenset[str] = DEFAULT_SCHEDULER
    """Schedulers whose pods the controller places, by its Deployment."""


async def read_live(cluster: "HttpCluster", namespace: str, progress: OnProgress) -> Read:
    """Raises ClusterError if not even nodes, slices, classes, claims and pods can be read."""
    return await _Reading(cluster, namespace, progress).read()


class _Reading(Struct):
    cluster: "HttpCluster"
    namespace: str
    progress: OnProgress
    unread: dict[str, str] = field(default_factory=dict)

    async def read(self) -> Read:
        version = await self.cluster.version()
        lease = await self._lease()
        lease_known = _LEASE_CHECK not in self.unread
        rule_kind = await taint_rule_kind(self.cluster)

        def miss(kind: Kind[Any], text: str) -> None:
            if kind is not kinds.DEVICE_TAINT_RULE or rule_kind is not None:  # else there are none
                self._miss(text, _CHECKS.get(kind, "refusals"))

        documents = await read_cluster(self.cluster, progress=self.progress, missed=miss)
        admission = await self._admission()
        arguments = await arguments_of(self.cluster, names.CONTROLLER, self.namespace)
        webhook = await self._webhook(admission, documents)
        modes: list[Mode] = _MODE.findall(arguments)
        mode = next(iter(modes), None)
        installation = Installation(
            mode=mode or "exclusive", webhook=webhook.expected, own_certificate=webhook.own_certificate
        )
        rights = await self._rights(installation)
        gates = await self._gates()
        workloads = await read_workloads(self.cluster, lambda why: self._miss(why, "notices", "programs"))
        again = await self._lease()
        moved = lease is not None and again is not None and again.spec.renew_time != lease.spec.renew_time
        live = Live(
            version=version,
            serves_taint_rules=rule_kind is not None,
            gates=gates,
            admission=admission,
            lease=again,
            lease_known=lease_known,
            lease_moved=moved,
            rights=rights,
            webhook=webhook,
            programs=tuple(_programs(workloads, self.namespace)),
        )
        return Read(
            documents,
            live,
            self.unread,
            mode=mode,
            managed=frozenset(_MANAGE.findall(arguments)),
            gang_sources=gang_sources_in(arguments),
            scheduler_names=frozenset(_SCHEDULER_NAME.findall(arguments)) or DEFAULT_SCHEDULER,
            workloads=workloads,
        )

    def _miss(self, why: str, *checks: str) -> None:
        for check in checks:
            self.unread.setdefault(check, why)

    async def _get(self, kind: Kind[T], name: str, check: str, unknown: str = "") -> T | None:
        """Return the object; None if there is none, or it may not be read: then the check lacks it."""
        try:
            return await self.cluster.get(kind, name, self.namespace)
        except NotFound:
            return None
        except Forbidden as error:
            self._miss(f"{unknown}{error}", check)
            return None

    async def _lease(self) -> Lease | None:
        return await self._get(kinds.LEASE, names.CONTROLLER, _LEASE_CHECK)

    async def _admission(self) -> Mapping[str, tuple[Raw, ...]] | None:
        found: dict[str, tuple[Raw, ...]] = {}
        for kind in ADMISSION:
            try:
                found[kind.name] = tuple(await self.cluster.list_raw(kind))
            except NotFound:
                found[kind.name] = ()
            except Forbidden as error:
                self._miss(str(error), "policies", "webhook")
                return None
        return found

    async def _gates(self) -> Mapping[str, bool] | None:
        """Return the API server's feature gates from its metrics. The other components should have the same gates."""
        try:
            text = await self.cluster.read_text("/metrics")
        except ClusterError as error:
            self._miss(f"the API server's feature gates are not known: {error}", "version")
            return None
        found = {name: value == "1" for name, value in _GATE.findall(text)}
        if not found:
            self._miss("the API server's metrics do not contain its feature gates", "version")
        return found or None

    # --- rights -----------------------------------------------------------------------------------

    async def _rights(self, installation: Installation) -> tuple[Right, ...] | None:
        slots = asyncio.Semaphore(_AT_ONCE)

        async def ask(right: Right) -> Right:
            async with slots:
                return await self._ask(right)

        wanted = needed_rights(manifests(installation), ACCOUNTS)
        try:
            if wanted:
                await self._ask(wanted[0])  # a missing right to ask is reported once
            return tuple(await asyncio.gather(*map(ask, wanted)))
        except (Forbidden, NotFound) as error:
            self._miss(str(error), "rights")
            return None

    async def _ask(self, right: Right) -> Right:
        namespace = self.namespace if right.namespace == names.SYSTEM_NAMESPACE else right.namespace
        right = replace(right, namespace=namespace)
        asked = {field: getattr(right, field) for field in _RESOURCE_ATTRIBUTES}
        accounts = "system:serviceaccounts"
        spec = {
            "user": f"system:serviceaccount:{self.namespace}:{right.account}",
            "groups": [accounts, f"{accounts}:{self.namespace}", "system:authenticated"],
            "resourceAttributes": {field: value for field, value in asked.items() if value},
        }
        answer = await self.cluster.create(SUBJECT_ACCESS_REVIEW, {"spec": spec})
        return replace(right, allowed=answer.status.allowed)

    # --- webhook ----------------------------------------------------------------------------------

    async def _webhook(self, admission: Mapping[str, tuple[Raw, ...]] | None, documents: list[Document]) -> WebhookSeen:
        hook = _convert_hook(admission)
        arguments = await arguments_of(self.cluster, names.WEBHOOK, self.namespace)
        own_certificate, certificate, conversion = False, None, None
        if hook is not None:
            own_certificate, certificate = await self._certificate(hook)
            conversion = await self._converted(hook, documents)
        return WebhookSeen(
            expected=hook is not None or await self._has_account(),
            own_certificate=own_certificate,
            certificate=certificate,
            certificates_checked=self._can_check_certificates(),
            conversion=conversion,
            certificate_from=_certificate_from(arguments),
            missing_runtime_classes=await self._missing_runtime_classes(arguments),
        )

    def _can_check_certificates(self) -> bool:
        lacking = missing_extra("cryptography")
        if lacking:
            self._miss(f"its certificates were not checked: that {lacking}", "webhook")
        return not lacking

    async def _missing_runtime_classes(self, arguments: str) -> Mapping[str, str]:
        missing: dict[str, str] = {}
        for vendor, name in _RUNTIME_CLASS.findall(arguments):
            try:
                await self.cluster.get_raw(kinds.RUNTIME_CLASS, name)
            except NotFound:
                missing[vendor] = name
            except Forbidden as error:
                self._miss(f"RuntimeClass {name} is not known: {error}", "webhook")
        return missing

    async def _has_account(self) -> bool:
        unknown = "whether it was installed is not known: "
        return await self._get(kinds.SERVICE_ACCOUNT, names.WEBHOOK, "webhook", unknown) is not None

    async def _certificate(self, hook: Raw) -> tuple[bool, bytes | None]:
        """Return whether a Secret for a self-issued certificate exists, and the shared certificate in it.

        A webhook that is reached by URL may serve another certificate. A certificate issued
        elsewhere is not visible here.
        """
        secret = await self._get(kinds.SECRET, names.WEBHOOK_SECRET, "webhook", "its certificate is not known: ")
        if secret is None:
            return False, None
        if "url" in hook.get("clientConfig", {}):
            return True, None
        try:
            return True, base64.b64decode(secret.data["tls.crt"])
        except (KeyError, ValueError):
            self._miss("its certificate is not known: its Secret has no readable tls.crt", "webhook")
            return True, None

    async def _converted(self, hook: Raw, documents: list[Document]) -> str | None:
        """Send a pod with legacy resource names as a dry run. None: it could not be sent."""
        namespace = _converted_namespace(hook, documents)
        if namespace is None:
            self._miss(
                "no namespace is converted, or only pods with certain labels: no pod was created as a dry run",
                "webhook",
            )
            return None
        try:
            pod = await self.cluster.create(kinds.POD, _legacy_pod(), namespace=namespace, dry_run=True)
        except ClusterError as error:
            if any(word in str(error) for word in _CONVERTED_AND_REFUSED):
                return str(error)
            self._miss(f"no pod could be created as a dry run: {error}", "webhook")
            return None
        return "" if pod.spec.resource_claims else "it was admitted unchanged"


def _programs(workloads: Iterable[Raw], namespace: str) -> Iterator[Program]:
    """Yield the installation's Deployments and DaemonSets; one that is scaled to zero wants a pod."""
    for raw in workloads:
        metadata, status = raw["metadata"], raw.get("status", {})
        part_of = (metadata.get("labels") or {}).get(names.PART_OF_LABEL)
        if metadata.get("namespace") == namespace and part_of == names.MANAGED_BY:
            program = partial(Program, kind=raw["kind"], name=metadata["name"])
            if raw["kind"] == kinds.DEPLOYMENT.name:
                yield program(wanted=raw["spec"].get("replicas", 1) or 1, ready=status.get("readyReplicas", 0))
            elif raw["kind"] == kinds.DAEMON_SET.name:
                yield program(wanted=status.get("desiredNumberScheduled", 0), ready=status.get("numberReady", 0))


def _certificate_from(arguments: str) -> Literal["self", "helm", "files"]:
    """Return what issues the certificates of a webhook with these arguments."""
    if "--authority-folder" in arguments:
        return "helm"
    return "files" if "--cert-file" in arguments else "self"


def _convert_hook(admission: Mapping[str, tuple[Raw, ...]] | None) -> Raw | None:
    hooks: Iterator[Raw] = (
        hook
        for configuration in (admission or {}).get(kinds.MUTATING_WEBHOOK.name, ())
        if configuration["metadata"]["name"] == names.WEBHOOK
        for hook in configuration.get("webhooks") or ()
    )
    return next((hook for hook in hooks if hook.get("name") == CONVERT_WEBHOOK), None)


def _converted_namespace(hook: Raw, documents: list[Document]) -> str | None:
    """Return a namespace in which pods without labels are converted, preferably `default`."""
    if not label_selector_matches(_selector(hook.get("objectSelector")), {}):
        return None
    selector = _selector(hook.get("namespaceSelector"))
    found = [
        each.raw["metadata"]["name"]
        for each in documents
        if each.raw.get("kind") == Namespace.__name__
        and label_selector_matches(selector, each.raw["metadata"].get("labels") or {})
    ]
    return "default" if "default" in found else next(iter(sorted(found)), None)


def _selector(raw: Any) -> LabelSelector:
    return msgspec.convert(raw or {}, LabelSelector)


def _legacy_pod() -> Raw:
    """Return a pod that requests part of a card: converted in either mode."""
    return {
        "metadata": {"generateName": "hami-dra-doctor-"},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "containers": [
                {
                    "name": "main",
                    "image": "registry.k8s.io/pause:3.10",
                    "resources": {"limits": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1"}},
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {"drop": ["ALL"]},
                        "runAsNonRoot": True,
                        "runAsUser": 65535,
                        "seccompProfile": {"type": "RuntimeDefault"},
                    },
                }
            ],
        },
    }
