"""How sentences about a pod name other pods.

The author of a pod reads its events and may know nothing of other namespaces, so only pods of the
same namespace are named. Commands read with the rights of their user, and name every pod.
"""

from typing import Final

from msgspec import Struct

from hami_dra.api.core import Pod

ELSEWHERE: Final = "a pod of another namespace"


class PodNames(Struct):
    everywhere: bool = False
    """Name pods of all namespaces."""

    def may_name(self, key: str, reader: Pod) -> bool:
        """Return whether the author of `reader` may read of the pod `namespace/name`."""
        return self.everywhere or key.partition("/")[0] == reader.metadata.namespace

    def of(self, key: str, reader: Pod) -> str:
        """Return the words for a pod in a sentence about `reader`.

        >>> import msgspec
        >>> reader = msgspec.convert({"metadata": {"name": "web", "namespace": "mine"}}, Pod)
        >>> PodNames().of("mine/db", reader), PodNames().of("secret/db", reader)
        ('Pod mine/db', 'a pod of another namespace')
        """
        return f"Pod {key}" if self.may_name(key, reader) else ELSEWHERE
