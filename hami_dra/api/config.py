"""Our own configuration kinds, validated by pydantic: opaque parameters of claims, and the fleet
file.

`DeviceConfig` is what a DeviceClass or ResourceClaim may carry under `config[].opaque.parameters`
for a hami.io driver.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Final, Literal, Self

from msgspec import Raw
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic.alias_generators import to_camel

from hami_dra.api.opaque import problem_of
from hami_dra.api.quantity import InvalidQuantity, Quantity
from hami_dra.api.short_texts import cached_if_short
from hami_dra.api.similar_names import did_you_mean

_UNKNOWN_FIELD: Final = "extra_forbidden"


def problems_of(error: ValidationError, models: Sequence[type[BaseModel]], document: str) -> str:
    """Return `field: what is wrong` for each problem, separated by semicolons.

    `models`: of the document and its parts; `document`: how to call it as a whole.
    """
    known = [field.alias or name for model in models for name, field in model.model_fields.items()]
    return "; ".join(
        f"{'.'.join(map(str, each['loc'])) or document}: {_in_words(each['type'], each['msg'], each['loc'], known)}"
        for each in error.errors(include_url=False)
    )


def _in_words(kind: str, message: str, location: tuple[int | str, ...], known: Sequence[str]) -> str:
    if kind == _UNKNOWN_FIELD:
        return f"there is no such field{did_you_mean(str(location[-1]), known)}"
    return message.removeprefix("Value error, ")


class ConfigModel(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, frozen=True)


def _quantity(text: str) -> str:
    try:
        return str(Quantity.parse(text))
    except InvalidQuantity as error:
        raise ValueError(str(error)) from error


QuantityValue = Annotated[str, BeforeValidator(lambda value: _quantity(str(value)))]
FinalField = Literal["memoryPercent", "priority", "corePolicy", "qos", "appClass", "limits"]


class DeviceConfig(ConfigModel):
    """Parameters for our drivers in a DeviceClass or a claim. `merge` defines precedence."""

    api_version: Literal["hami.io/v1alpha1"] = "hami.io/v1alpha1"
    kind: Literal["DeviceConfig"] = "DeviceConfig"
    memory_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """For requests without `memory`: the allocator takes floor(card x percent / 100) of the card that it chooses."""
    priority: Annotated[int, Field(ge=0, le=1)] | None = None
    """HAMi's task priority: 0 high, 1 low."""
    core_policy: Literal["default", "force", "disable"] | None = None
    """HAMi's gpuCorePolicy for shared NVIDIA cards: limit cores while others want them, always, never."""
    qos: Literal["best-effort", "fixed-share", "burst-share"] | None = None
    """How a MetaX sGPU shares the cores of its card. The allocator writes it into every allocation of such a card."""
    app_class: Literal["online", "offline"] | None = None
    """Class of a task on a MetaX sGPU: online tasks go before offline ones that share their card."""
    limits: Literal["optional", "enforced"] | None = None
    """Whether a container of a shared NVIDIA card may disable its limits (`CUDA_DISABLE_CONTROL`),
    as HAMi allows, or not.
    """

    final: tuple[FinalField, ...] = ()
    """For a DeviceClass: fields set here that claims must not set differently."""
    minimum: dict[str, QuantityValue] = {}
    """For a DeviceClass: capacity → the smallest request allowed for one device, such as `{cores: 10, memory: 1Gi}`."""

    def of_claim(self) -> dict[str, Any]:
        """Return as JSON the fields that a claim may set, without those reserved for a DeviceClass."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, exclude=set(_OF_CLASS))

    @model_validator(mode="after")
    def _check_final(self) -> Self:
        for name in self.final:
            if getattr(self, _ATTRIBUTES[name]) is None:
                raise ValueError(f"final names {name}, which has no value here: set it, or remove it from final")
        return self


_ATTRIBUTES: Final[dict[str, str]] = {(field.alias or name): name for name, field in DeviceConfig.model_fields.items()}
_OF_CLASS: Final = ("final", "minimum")


class NotForClaims(ValueError):
    """A claim sets a field reserved to its DeviceClass. The message names the field, both values and the fix."""


def merge(of_class: Iterable[DeviceConfig], of_claim: Iterable[DeviceConfig], class_name: str) -> DeviceConfig:
    """Return the effective parameters of one request: class before claim, later entries win, by
    field.

    A field that the class marks final keeps the class's value. `class_name` is for the message.
    Raises NotForClaims if a claim sets such a field to another value, or a field reserved to
    classes.
    """
    merged: dict[str, Any] = {}
    final: dict[str, None] = {}
    for config in of_class:
        merged |= _said(config)
        final |= dict.fromkeys(config.final)
    for config in of_claim:
        said = _said(config)
        for name in _OF_CLASS:
            if said.get(name):
                raise NotForClaims(f"{name} may be set by a DeviceClass only; remove it from the claim")
        for name in final:
            own, attribute = said.get(_ATTRIBUTES[name]), _ATTRIBUTES[name]
            if own is not None and own != merged[attribute]:
                raise NotForClaims(
                    f"{name} is {own}, but {class_name} sets it to {merged[attribute]} and marks it final; remove it from "
                    "the claim"
                )
        merged |= said
    return DeviceConfig(**{**merged, "final": tuple(final)})


def _said(config: DeviceConfig) -> dict[str, Any]:
    return config.model_dump(exclude_none=True, exclude_defaults=True)


@cached_if_short(1_024, 1_024)
def read_device_config(parameters: bytes) -> DeviceConfig | str:
    """Return the configuration in opaque parameters, or the problem (field and reason, for people)."""
    if problem := problem_of(Raw(parameters)):
        return problem
    try:
        return DeviceConfig.model_validate_json(parameters)
    except ValidationError as error:
        return problems_of(error, [DeviceConfig], "document")


# --- the fleet file -------------------------------------------------------------------------------

_INDEX: Final = re.compile(r"\{index(?::0([1-9]))?\}")
_NODE_NAME: Final = re.compile(r"(?=.{1,253}$)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
_LABEL_VALUE: Final = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")


def _label_value(text: str) -> str:
    if not _LABEL_VALUE.fullmatch(text):
        raise ValueError(f"{text!r} cannot be the value of a label: letters, digits, '-', '_' and '.', at most 63")
    return text


def _numbered(pattern: str, index: int) -> str:
    return _INDEX.sub(lambda match: f"{index:0{match[1] or 1}}", pattern)


LabelValue = Annotated[str, AfterValidator(_label_value)]
Sharing = dict[str, int | float | str]
"""How cards are shared: fields of `VendorOption.field` (`slots`). `driver.fleet` reads them."""


class NodeTaint(ConfigModel):
    key: str
    value: str = ""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


class FleetTopology(ConfigModel):
    """A level of the network: nodes that follow each other in a group share a value of a label."""

    label: str
    """Key: `cloud.provider.com/topology-rack`."""
    nodes: Annotated[int, Field(ge=1)]
    """How many nodes share a value."""
    value: str = ""
    """`{index}` counts the values from 0, as in names. Default: the key's last word and the index:
    `topology-rack-0`.
    """

    @model_validator(mode="after")
    def _check_value(self) -> Self:
        if self.value and not _INDEX.search(self.value):
            raise ValueError(f"value {self.value!r} is the same for all nodes: put {{index}} into it, or use labels")
        _label_value(self.value_of(0))
        return self

    def value_of(self, index: int) -> str:
        """Return the label's value of the node number `index` of the group."""
        return _numbered(self.value or f"{self.label.rpartition('/')[2]}-{{index}}", index // self.nodes)


class FleetNodes(ConfigModel):
    """Nodes of one kind of machine."""

    machine: str
    """A reference machine: `hami-dra slices --list`."""
    count: Annotated[int, Field(ge=0, le=20_000)] = 1
    name: str = ""
    """Name of the nodes; `{index}` counts from 0, `{index:03}` with leading zeros. Default: the
    machine, then the index.
    """
    mig: bool | None = None
    """Whether GPUs that support MIG are in MIG mode. Default: defined by the machine."""
    publish_as: str = ""
    """Another driver to imitate (`gpu.nvidia.com`, ...); empty: our own drivers."""
    labels: dict[str, LabelValue] = {}
    topology: tuple[FleetTopology, ...] = ()
    """Racks, blocks: labels of runs of nodes."""
    cliques: tuple[Annotated[int, Field(ge=1)], ...] = ()
    """For machines with a fabric across nodes (gb200-nvl72): how many nodes each of its partitions
    has. Default: one clique of all nodes.
    """
    annotations: dict[str, str] = {}
    taints: tuple[NodeTaint, ...] = ()
    """Taints of created nodes; existing nodes keep theirs."""
    allocatable: dict[str, QuantityValue] = {}
    """Added to, or replacing, what the machine has."""
    sharing: Sharing | None = None
    """Overrides the fleet's sharing."""

    @model_validator(mode="after")
    def _check_name(self) -> Self:
        if self.count > 1 and self.name and not _INDEX.search(self.name):
            raise ValueError(f"name {self.name!r} is the same for {self.count} nodes: put {{index}} into it")
        shown = self.node_name(max(self.count - 1, 0))
        if not _NODE_NAME.fullmatch(shown):
            raise ValueError(f"name {self.name!r} makes {shown!r}, which cannot be the name of a node")
        return self

    def node_name(self, index: int) -> str:
        return _numbered(self.name or f"{self.machine.replace('.', '-').lower()}-{{index}}", index)


class FleetFile(ConfigModel):
    """Simulated nodes, by kind and number: what `hami-dra slices --fleet` publishes."""

    api_version: Literal["hami.io/v1alpha1"] = "hami.io/v1alpha1"
    kind: Literal["Fleet"] = "Fleet"
    name: LabelValue = Field(default="fleet", min_length=1)
    """Marks the nodes and slices of this fleet; two fleets in one cluster need different names."""
    nodes: tuple[FleetNodes, ...] = ()
    zones: tuple[LabelValue, ...] = ()
    """Assigned to the nodes in turn, as the label `topology.kubernetes.io/zone`."""
    create_nodes: bool = True
    """False: publish on existing nodes, and leave the Node objects alone."""
    sharing: Sharing = {}

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        seen: set[str] = set()
        for group in self.nodes:
            for index in range(group.count):
                name = group.node_name(index)
                if name in seen:
                    raise ValueError(f"two nodes would be named {name!r}: give each group of nodes a name of its own")
                seen.add(name)
        return self
