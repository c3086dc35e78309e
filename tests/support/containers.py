"""Tenancies and a host for tests of what containers get."""

from hami_dra.api.config import DeviceConfig
from hami_dra.api.containers import CdiDevice, ContainerPlace, HostSettings, Tenancy
from hami_dra.api.hardware import Card
from tests.support.settings import vendor_settings

MIB = 1 << 20
GIB = 1 << 30


def kernel_with_mig(gpus=3):
    """What the kernel says of MIG capabilities: files by path. GPU 0's instance 3 has the minors 30 and 31, as on a real machine."""
    lines = ["config 1", "monitor 2"]
    minor = 3
    for gpu in range(gpus):
        for instance in range(15):
            lines += [f"gpu{gpu}/gi{instance}/access {minor}"]
            lines += [f"gpu{gpu}/gi{instance}/ci{compute}/access {minor + 1 + compute}" for compute in range(8)]
            minor += 9
    majors = "Character devices:\n195 nvidia\n508 nvidia-caps\n509 nvidia-caps-imex-channels\n"
    return {
        "/proc/driver/nvidia-caps/mig-minors": "\n".join([*lines, ""]),
        "/proc/driver/nvidia/capabilities/mig/config": "DeviceFileMinor: 1\nDeviceFileMode: 256\nDeviceFileModify: 1\n",
        "/proc/devices": majors,
    }


class PretendHost:
    """Implements `hami_dra.api.containers.Host`: a set of paths, texts of files, listings of folders.

    `settings`: device_folder, nodes_required, and options of vendors by name.
    """

    def __init__(self, *paths, files=None, folders=None, cdi=(), common=(), driver_files=None, **settings):
        own = {name: settings.pop(name) for name in ("device_folder", "nodes_required") if name in settings}
        self.settings = HostSettings(**own, options=vendor_settings(**settings))
        self.cdi_devices = dict(cdi) if isinstance(cdi, dict) else dict.fromkeys(cdi, CdiDevice())
        self.cdi_common_edits = tuple(common)
        self.driver_files = driver_files
        self._paths = set(paths)
        self._files = files or {}
        self._folders = folders or {}

    def exists(self, path):
        return path in self._paths

    def read(self, path):
        return self._files.get(path)

    def names(self, folder):
        return self._folders.get(folder, ())


def card(index=0, *, vendor="nvidia", uuid=None, product="Tesla T4", memory=16 * GIB, minor=None, **more):
    return Card(
        vendor=vendor,
        index=index,
        uuid=f"GPU-{index}" if uuid is None else uuid,
        product=product,
        memory=memory,
        minor=minor,
        **more,
    )


def tenancy(of, consumed=None, *, whole=False, request="r", config=None, **more):
    return Tenancy(
        card=of,
        device=more.pop("device", f"gpu-{of.index}"),
        request=request,
        consumed=consumed or {},
        whole=whole,
        parameters=DeviceConfig(**(config or {})),
        **more,
    )


def place(view="pod-1_main", containers=("main",), **more):
    return ContainerPlace(
        claim_namespace="default", claim_name="c", claim_uid="u-1", view=view, containers=containers, **more
    )
