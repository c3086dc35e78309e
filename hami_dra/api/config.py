"""Our own configuration kinds, validated by pydantic: the opaque parameters of claims and the fleet file.

`DeviceConfig` is what a DeviceClass or ResourceClaim may carry under `config[].opaque.parameters` for a hami.io driver.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

API_VERSION = "hami.io/v1alpha1"


class ConfigModel(BaseModel):
    model_config = ConfigDict(extra="forbid", alias_generator=to_camel, populate_by_name=True, frozen=True)


class DeviceConfig(ConfigModel):
    """Parameters of our drivers: claim over class, field by field."""

    api_version: Literal["hami.io/v1alpha1"] = "hami.io/v1alpha1"
    kind: Literal["DeviceConfig"] = "DeviceConfig"
    memory_percent: Annotated[int, Field(ge=1, le=100)] | None = None
    """The request leaves `memory` out; the allocator takes floor(card x percent / 100) of the card it chooses."""
    priority: Annotated[int, Field(ge=0, le=1)] | None = None
    """HAMi's task priority: 0 high, 1 low."""
