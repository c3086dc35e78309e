"""Convert legacy manifests (nvidia.com/gpu, gpumem, gpucores, ...) to ResourceClaims, as the webhook would.

Pods and the pod templates of Deployments, StatefulSets, Jobs and similar kinds are converted; the
ResourceClaimTemplates they need come before them. Other objects are printed unchanged. Nothing is
sent to a cluster. Notes go to stderr.

Examples:
    hami-dra convert -f examples/a-node-binpack-gpu-binpack.yaml
    hami-dra convert -f examples/ | kubectl apply -f -
    hami-dra convert -f examples/ --runtime-class nvidia=nvidia

Exit status: 0, or 2 if something cannot be converted; then nothing is printed.
"""

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated

from controller.cli.output_options import Manifest, ManifestOption, print_objects
from controller.cli.tables import note
from controller.settings.webhook import RUNTIME_CLASS
from hami_dra.api.flags import Option


def convert(
    files: Annotated[tuple[Path, ...], Option("File or folder; may be repeated.", flags=("-f", "--filename"))],
    *,
    output: ManifestOption = Manifest.yaml,
    runtime_class: Annotated[Mapping[str, str], RUNTIME_CLASS] = MappingProxyType({}),
) -> None:
    from controller.webhook import Options, convert_documents
    from hami_dra.kube.documents import read_documents

    converted = convert_documents(read_documents(files), Options(runtime_classes=runtime_class))
    for warning in converted.warnings:
        note(warning)
    print_objects(converted.documents, output)
