"""The base class of what people and programs see."""

from msgspec import Struct


class View(Struct, frozen=True, rename="camel", gc=False):
    """A value whose JSON has the field names in camelCase. Unlike API objects, it omits no field."""
