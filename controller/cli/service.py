"""Start and orderly end of a long-running command; a failed start ends with one sentence."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from controller.cli.errors import CommandError
from controller.cli.heap import return_freed_memory
from hami_dra.api.errors import InputError
from hami_dra.kube.guard import first_failure
from hami_dra.kube.protocol import ClusterError


def run_service(service: Coroutine[Any, Any, None]) -> None:
    """Run until the service ends or a signal arrives; it is then cancelled and may clean up. Raises CommandError."""
    return_freed_memory()
    try:
        asyncio.run(_until_asked(service))
    except Exception as error:
        cause = first_failure(error)
        if isinstance(cause, InputError | ClusterError):
            raise CommandError(*cause.args) from error
        raise


async def _until_asked(service: Coroutine[Any, Any, None]) -> None:
    task = asyncio.ensure_future(service)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, task.cancel)
    try:
        await task
    except asyncio.CancelledError:
        if not task.cancelled():
            raise
