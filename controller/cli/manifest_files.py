"""The -f option of commands that read manifests.

It wraps `hami_dra.kube.documents`, and turns its errors into errors for the user.
"""

from collections.abc import Iterable
from pathlib import Path

from controller.cli.errors import CommandError
from hami_dra.kube.documents import BadDocument, Document
from hami_dra.kube.documents import read_documents as _read_documents


def read_documents(paths: Iterable[Path]) -> list[Document]:
    """Return all objects of files and folders (recursive, in name order).

    Raises CommandError, which names file, document and line.
    """
    try:
        return _read_documents(paths)
    except BadDocument as error:
        raise CommandError(str(error)) from error
