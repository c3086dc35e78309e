"""The -f option of commands that read manifests: what `hami_dra.cluster.documents` reads, its errors as the user's to fix."""

from collections.abc import Iterable
from pathlib import Path

from hami_dra.cli.errors import CommandError
from hami_dra.cluster.documents import BadDocument, Document
from hami_dra.cluster.documents import read_documents as _read_documents


def read_documents(paths: Iterable[Path]) -> list[Document]:
    """All objects of files and folders (recursive, in name order). Raises CommandError, which names file, document, line."""
    try:
        return _read_documents(paths)
    except BadDocument as error:
        raise CommandError(str(error)) from error
