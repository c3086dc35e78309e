"""What people and programs see of a cluster, as plain values; and the columns of tables."""

from msgspec import Struct


class View(Struct, frozen=True, rename="camel", gc=False):
    """A value whose JSON has the field names in camelCase. Unlike API objects, it omits no field."""
