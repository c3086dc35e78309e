"""Conversion of whole manifests: the engine of `hami-dra convert`.

In: the documents of files. Out: the same documents in the same order, with each
ResourceClaimTemplate right before the first document that needs it. Kinds without a pod template
pass through unchanged. Pure; must not print.

Templates in files belong to the user: they carry no `managed-by` label, so the template collector
ignores them.
"""

from collections.abc import Iterable, Mapping
from copy import deepcopy
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from controller.webhook.convert import UNCONVERTED, ConversionRefused, Options, convert_pod
from controller.webhook.workloads import POD_TEMPLATES, group_and_kind, is_pod, metadata_notices, pod_template
from hami_dra.api import names
from hami_dra.api.errors import InputError
from hami_dra.kube.documents import Document

Raw = dict[str, Any]


class ConvertRefused(InputError):
    """Some documents cannot be converted; one argument each, with file, document, object, field and fix."""


class Converted(Struct, frozen=True):
    documents: list[Raw]
    warnings: tuple[str, ...]


def convert_documents(documents: Iterable[Document], options: Options | None = None) -> Converted:
    """Convert all documents; pods are gated when they are created. Raises ConvertRefused."""
    options = replace(options or Options(), gate=False)
    originals = list(documents)
    known = {_identity(document.raw) for document in originals}
    converted: list[Raw] = []
    warnings: list[str] = []
    refusals: list[str] = []
    for document in originals:
        try:
            raw, templates, found = _convert(document.raw, options)
        except ConversionRefused as error:
            owner = _describe(document.raw)
            refusals.extend(f"{document}: {owner}: {problem}" for problem in error.problems)
            continue
        namespace = _metadata(document.raw).get("namespace")
        if templates and namespace in UNCONVERTED:
            found = (
                *found,
                f"the webhook leaves pods of namespace {namespace} as they are; converted here, it runs there",
            )
        warnings.extend(f"{document}: {_describe(document.raw)}: {warning}" for warning in found)
        for template in templates:
            del template["metadata"]["labels"][names.MANAGED_BY_LABEL]
            if _identity(template) not in known:
                known.add(_identity(template))
                converted.append(template)
        converted.append(raw)
    if refusals:
        raise ConvertRefused(*refusals)
    return Converted(converted, tuple(warnings))


def _convert(raw: Raw, options: Options) -> tuple[Raw, list[Raw], tuple[str, ...]]:
    namespace = _metadata(raw).get("namespace") or ""
    if is_pod(raw):
        conversion = convert_pod(raw, namespace, options)
        return conversion.pod, conversion.templates, conversion.warnings
    template = pod_template(raw)
    if not template:
        return raw, [], ()
    conversion = convert_pod(template, namespace, options)
    converted = _replaced(raw, POD_TEMPLATES[group_and_kind(raw)], conversion.pod)
    return converted, conversion.templates, (*conversion.warnings, *metadata_notices(raw))


def _replaced(raw: Raw, path: tuple[str, ...], value: Raw) -> Raw:
    """Return a copy of `raw` with another value at `path`, keys in their old order."""
    if not path:
        return deepcopy(value)
    return {key: _replaced(entry, path[1:], value) if key == path[0] else entry for key, entry in raw.items()}


def _identity(raw: Raw) -> tuple[str, str, str]:
    metadata = _metadata(raw)
    return str(raw.get("kind")), str(metadata.get("namespace") or ""), str(metadata.get("name"))


def _describe(raw: Raw) -> str:
    kind, namespace, name = _identity(raw)
    return f"{kind} {namespace}/{name}" if namespace else f"{kind} {name}"


def _metadata(raw: Raw) -> Mapping[str, Any]:
    metadata = raw.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
