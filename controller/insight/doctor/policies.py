"""Check of the admission policies: compares them with those that ship with this version.

Pure but for reading the shipped files. What the API server adds to an object (`scope: "*"`, empty
selectors) is no difference: only the fields that the manifest sets are compared.
"""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from controller.insight.doctor.installed import is_out, named
from controller.insight.doctor.model import Finding, Live, Raw, Severity, State
from hami_dra.api import kinds, names
from hami_dra.kube.documents import read_documents
from hami_dra.kube.manifests import OPTIONAL, shipped_folder

_ACCOUNT: Final = "system:serviceaccount:"
_TOKEN: Final = "anyone with the controller's token may "  # noqa: S105 (words)
_WITHOUT: Final = {
    names.FENCE_POLICY: "claims that tolerate the fence are admitted, and kube-scheduler allocates for them",
    names.GATE_POLICY: "pods are not gated, and kube-scheduler tries them for nothing first",
    names.PROTECT_POLICY: "claims of pods get their finalizer from the controller, which takes one more write for each pod",
    names.CLAIM_POLICY: "a claim can be deleted under its running pod, and its devices are then allocated twice",
    names.SLICE_POLICY: "a driver may write slices of other nodes, and into their pools",
    names.TOKEN_POLICY: "anyone who may create Secrets in hami-dra's namespace can get the token of any account there",
    names.EVENT_POLICY: "controller and drivers may report events in the name of others",
    names.TRUST_POLICY: "a webhook with certificates of its own may send any object of the cluster to any server",
    names.CONTROLLER_PODS_POLICY: f"{_TOKEN}change any field of any pod",
    names.CONTROLLER_MARKS_POLICY: f"{_TOKEN}raise any quota, and change the metadata of any claim",
    names.CONTROLLER_TEMPLATES_POLICY: f"{_TOKEN}create and delete the claim templates of all users",
    names.CONTROLLER_FENCE_POLICY: f"{_TOKEN}taint all devices",
    names.CONTROLLER_PROBE_POLICY: f"{_TOKEN}run any pod in the namespace of the probe",
}
"""Policy → the consequence of its absence."""
_LESS: Final = frozenset({names.GATE_POLICY, names.PROTECT_POLICY, names.EVENT_POLICY})
"""Policies without which nothing breaks; the absence of the gate's can be intended."""
_EXCLUSIVE: Final = frozenset({names.FENCE_POLICY, names.GATE_POLICY, names.PROTECT_POLICY})
"""Only in exclusive mode."""
_CHOSEN: Final = {
    names.GATE_POLICY: "matchConditions",
    names.PROTECT_POLICY: "matchConditions",
    names.CONTROLLER_PROBE_POLICY: "variables",
}
"""Policy → field of its spec that has an operator's choices: schedulers, classes, an image."""
_POLICIES: Final = (kinds.VALIDATING_POLICY.name, kinds.MUTATING_POLICY.name)
_BINDINGS: Final = (kinds.VALIDATING_POLICY_BINDING.name, kinds.MUTATING_POLICY_BINDING.name)


def policies(state: State) -> Iterator[Finding]:
    """Report the first difference of each policy, or else of its binding."""
    live = state.cluster
    if live.admission is None or is_out(state):
        return
    namespace, reported = state.installation.namespace, set()
    for file, wanted in _shipped(namespace):
        name = wanted["metadata"]["name"]
        if name in reported or (name in _EXCLUSIVE and state.installation.mode != "exclusive"):
            continue
        if problem := _problem(live, wanted, namespace):
            reported.add(name)
            yield Finding.of(
                Severity.WARNING if name in _LESS else Severity.ERROR,
                f"{wanted['kind']} {name}",
                f"{problem}: {_WITHOUT[name]}",
                f"kubectl apply -f manifests/{file}, or upgrade the Helm release",
            )


def _shipped(namespace: str) -> Iterator[tuple[str, Raw]]:
    """Yield the policies and bindings, each policy first, with the names of their files."""
    folder = shipped_folder("manifests")
    for document in read_documents([folder]):
        if document.raw["kind"] in (*_POLICIES, *_BINDINGS) and OPTIONAL not in document.source.parts:
            text = json.dumps(document.raw).replace(names.SYSTEM_NAMESPACE, namespace)
            yield document.source.name, json.loads(text)


def _problem(live: Live, wanted: Raw, namespace: str) -> str:
    kind, name = wanted["kind"], wanted["metadata"]["name"]
    if kind in _BINDINGS:  # an operator may have bound the policy under another name
        bindings = (live.admission or {}).get(kind, ())
        present = [each for each in bindings if each.get("spec", {}).get("policyName") == name]
        differences = [_difference(wanted["spec"], each["spec"], "") for each in present]
        return min(differences, key=len, default="it is missing, so the policy does nothing")
    policy = named(live, kind, name)
    if policy is None:
        return "it is missing"
    conditions = policy.get("spec", {}).get("matchConditions") or ()
    text = " ".join(str(each.get("expression", "")) for each in conditions)
    if _ACCOUNT in text and f"{_ACCOUNT}{namespace}:" not in text:
        return f"it names accounts of another namespace than {namespace}"
    compared = {field: value for field, value in wanted["spec"].items() if field != _CHOSEN.get(name)}
    return _difference(compared, policy.get("spec", {}), "")


def _difference(wanted: Any, present: Any, path: str) -> str:
    """Return the first field that is not as wanted, in words; empty if there is none.

    >>> _difference({"failurePolicy": "Fail"}, {"failurePolicy": "Ignore", "paramKind": None}, "")
    'its failurePolicy is Ignore'
    >>> _difference({"validationActions": ["Deny"]}, {"validationActions": ["Audit"]}, "")
    'its validationActions do not say Deny'
    """
    if not wanted or wanted == present:
        return ""
    if isinstance(wanted, Mapping) and isinstance(present, Mapping):
        parts = (_difference(value, present.get(key), f"{path}.{key}".lstrip(".")) for key, value in wanted.items())
        return next(filter(None, parts), "")
    if isinstance(wanted, list) and isinstance(present, list):
        if not isinstance(wanted[0], Mapping):
            missing = [str(each) for each in wanted if each not in present]
            return f"its {path} do not say {', '.join(missing)}" if missing else ""
        if len(wanted) == len(present):
            pairs = enumerate(zip(wanted, present, strict=True))
            parts = (_difference(first, second, f"{path}[{index}]") for index, (first, second) in pairs)
            return next(filter(None, parts), "")
    if isinstance(present, str) and present.isalnum():
        return f"its {path} is {present}"
    return f"its field {path} is {'missing' if present is None else 'not as shipped'}"
