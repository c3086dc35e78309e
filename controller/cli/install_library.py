"""Install on this node the library that limits containers to their share of a device: HAMi-core for NVIDIA.

The folder has libvgpu.so or libvgpu.so.VERSION, as HAMi's image has it in /k8s-vgpu/lib/nvidia. The
library and the file that preloads it are written below --library-folder, each at once, so that
running containers keep the ones that they started with; a file that is there already with that
content is left alone.

Examples:
    hami-dra install-library --from /k8s-vgpu/lib/nvidia
    hami-dra install-library --from /opt/hami-core --library-folder /opt

Exit status: 0, or 2 if there is no library that this node could use, or it cannot be written.
"""

from pathlib import Path
from typing import Annotated

import typer

from controller.cli.errors import CommandError
from controller.cli.vendor_options import DriverCommand, vendor_settings
from hami_dra.api.flags import Option


class _Command(DriverCommand):
    only = frozenset({"library-folder", "library-version"})


COMMAND = _Command


def install_library(
    context: typer.Context,
    *,
    source: Annotated[Path, Option("Folder that has the library.", flags=("--from",))],
    vendor: Annotated[str, Option("Vendor whose devices it limits.")] = "nvidia",
) -> None:
    from hami_dra.driver.prepare import Files
    from hami_dra.vendors.registry import plugin_names, plugin_of

    if vendor not in plugin_names() or (files_of := plugin_of(vendor).library_files) is None:
        raise CommandError(f"--vendor {vendor}: it has no library that limits containers; nvidia has one")
    files = Files()
    try:
        wanted = files_of(source, vendor_settings(context))
        for name, content in wanted.items():
            path = Path(name)
            if files.read(path) == content:
                typer.echo(f"{path} is there already")
                continue
            files.make_folder(path.parent, 0o755)
            files.write(path, content, 0o644)
            files.label_for_containers(path)
            typer.echo(f"{path} written, {len(content)} bytes")
    except ValueError as error:
        raise CommandError(f"--from: {error}") from error
    except OSError as error:
        raise CommandError(f"{error.filename or source}: {error.strerror}") from error
