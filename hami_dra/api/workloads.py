"""apps/v1 and batch/v1 kinds that carry a pod template: read by `simulate` and `convert` only."""

from typing import Any

import msgspec

from hami_dra.api.meta import LabelSelector, Object, Struct


class PodTemplate(Struct, frozen=True):
    """A pod template whose `spec` and `metadata` stay raw.

    They are expanded into pods or converted, and nothing may be lost in the process.
    """

    metadata: dict[str, Any] = msgspec.field(default_factory=dict)
    spec: dict[str, Any] = msgspec.field(default_factory=dict)


class WorkloadSpec(Struct, frozen=True):
    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    selector: LabelSelector | None = None
    template: PodTemplate = PodTemplate()


class Workload(Object, frozen=True):
    spec: WorkloadSpec = WorkloadSpec()
