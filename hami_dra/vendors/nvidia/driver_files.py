"""The files of NVIDIA's user-space driver that containers need: libraries, tools, sockets, and the
hooks by which programs find them.

Called by `containers` unless a CDI device of another program brings them. In: the host. Out: edits,
or why there are none. Pure.

Two sources, in this order. The common edits of a CDI specification that NVIDIA's toolkit wrote for
this driver version: such a specification does not know instances that were created after it, nor
GPUs in MIG mode (nvidia-container-toolkit pkg/nvcdi/lib-nvml.go), but the common edits of all
devices are valid for them too. Else the driver root, searched as the toolkit does
(pkg/nvcdi/driver-nvml.go, internal/discover/{ipc,symlinks,ldconfig,compat_libs}.go,
pkg/lookup/library.go): libraries of the loaded version in the folders where packages install them,
tools in PATH, GSP firmware, sockets of nvidia-persistenced, the fabric manager and MPS. Files of
graphics programs only (EGL and Vulkan configuration) are left out.
"""

import re
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Final

from msgspec.structs import replace

from hami_dra.api.containers import Edits, FileTree, Hook, Host, Mount, Unpreparable
from hami_dra.vendors.nvidia.options import CDI_HOOK
from hami_dra.vendors.options import DRIVER_ROOT

CDI_KIND: Final = "nvidia.com/gpu"
MODULE_VERSION: Final = "/sys/module/nvidia/version"
VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
_LIBRARY: Final = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.([0-9]+(?:\.[0-9]+)+)$")
_VERSIONED: Final = re.compile(r"libcuda\.so\.([0-9]+(?:\.[0-9]+)+)")
_SONAME: Final = re.compile(r"(lib.+\.so)\.[0-9]+")

LIBRARY_FOLDERS: Final = (
    "/usr/lib64",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/usr/lib/x86_64-linux-gnu/nvidia/current",
    "/usr/lib/aarch64-linux-gnu/nvidia/current",
    "/lib64",
    "/lib/x86_64-linux-gnu",
    "/lib/aarch64-linux-gnu",
    "/lib/x86_64-linux-gnu/nvidia/current",
    "/lib/aarch64-linux-gnu/nvidia/current",
)
_FURTHER: Final = "vdpau"
"""A subfolder with further libraries."""
_LEGACY: Final = "libnvidia-nvvm70.so.*"
"""A library with its own version."""
_TOOL_FOLDERS: Final = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin", "/opt/bin")
_TOOLS: Final = (
    "nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-cuda-mps-server",
    "nvidia-imex", "nvidia-imex-ctl",
)  # fmt: skip
_FIRMWARE: Final = ("/lib/firmware/updates/nvidia", "/lib/firmware/nvidia")
_FIRMWARE_FILES: Final = ("gsp*.bin", "ucodes*.bin")
_SOCKETS: Final = ("/nvidia-persistenced/socket", "/nvidia-fabricmanager/socket")
_SOCKET_FOLDERS: Final = ("/run", "/var/run")
_MPS: Final = "/tmp/nvidia-mps"  # noqa: S108 (where MPS listens)
READ_ONLY: Final = ("ro", "nosuid", "nodev", "rbind", "rprivate")
SOCKET: Final = ("nosuid", "nodev", "rbind", "rprivate", "noexec")
HOOK_PATHS: Final = ("/usr/bin/nvidia-cdi-hook", "/usr/local/nvidia/toolkit/nvidia-cdi-hook")
"""The toolkit's package, GPU Operator. The hooks below need version 1.17.8; those of later ones
(update-application-profile, apply-cuda-memory-limits) are left out, since an unknown hook keeps the
container from starting.
"""
_UNVERSIONED: Final = "libcuda.so"


def driver_files(host: Host) -> Edits | None:
    """Return the files as edits, whose notes are about them; None if this driver brings none, so that the
    container runtime must.

    Raises Unpreparable if they should exist and do not.
    """
    common = _from_specification(host)
    if common is not None or host.driver_files is None:
        return common
    return _from_root(host, host.driver_files)


def loaded_version(host: Host) -> str:
    """Return the version of the kernel driver; empty if the kernel does not report it."""
    return (host.read(MODULE_VERSION) or "").strip()


def library_versions(paths: Sequence[str] | frozenset[str]) -> set[str]:
    """Return the driver versions of the libraries among these paths."""
    return {version[1] for path in paths if (version := _LIBRARY.search(path))}


# --- a CDI specification --------------------------------------------------------------------------


def _from_specification(host: Host) -> Edits | None:
    loaded = loaded_version(host)
    for common in host.cdi_common_edits:
        versions = library_versions([mount.host for mount in common.edits.mounts])
        if common.kind == CDI_KIND and versions and loaded in {"", *versions}:
            env = {name: value for name, value in common.edits.env.items() if name != VISIBLE}
            return replace(common.edits, env=env)
    return None


# --- the driver root ------------------------------------------------------------------------------


def _from_root(host: Host, tree: FileTree) -> Edits:
    version = loaded_version(host) or _found_version(tree)
    libraries = list(_libraries(tree, version)) if version else []
    if not any(library_versions([library]) for library in libraries):
        wanted = f"libcuda.so.{version}" if version else "libcuda.so.*"
        raise Unpreparable(
            f"the container would start without NVIDIA's libraries: there is no {wanted} below the driver root "
            f"{host.settings.options[DRIVER_ROOT]}; install the driver there, or name the right folder with --driver-root"
        )
    links = list(dict.fromkeys(link for library in libraries for link in _links(tree, library)))
    folders = list(dict.fromkeys(library.rpartition("/")[0] for library in libraries))
    mounts = [_mount(host, path, path, READ_ONLY) for path in (*libraries, *_firmware(tree, version))]
    mounts += [_mount(host, resolved, path, READ_ONLY) for path, resolved in _tools(tree)]
    mounts += [_mount(host, path, path, SOCKET) for path in _sockets(tree)]
    env = {"NVIDIA_CTK_LIBCUDA_DIR": ":".join(each for each in folders if not each.endswith(f"/{_FURTHER}"))}
    tool = _hook_tool(host, tree)
    if tool:
        return Edits(env=env, mounts=tuple(mounts), hooks=tuple(_hooks(tool, version, links, folders)))
    mounts += [
        _mount(host, library, f"{library.rpartition('/')[0]}/{name}", READ_ONLY)
        for library in libraries
        for name in _other_names(tree, library)
    ]
    note = (
        f"nvidia-cdi-hook is not on this node: programs find NVIDIA's libraries only where their image looks into {', '.join(folders)}; "
        "install nvidia-container-toolkit, or name the tool with --cdi-hook"
    )
    return Edits(env=env, mounts=tuple(mounts), notes=(note,))


def _found_version(tree: FileTree) -> str:
    for folder in LIBRARY_FOLDERS:
        for name in tree.names(folder):
            if version := _VERSIONED.fullmatch(name):
                return version[1]
    return ""


def _libraries(tree: FileTree, version: str) -> Iterator[str]:
    """Yield resolved paths, each once."""
    seen = set()
    found = dict.fromkeys(folder for each in LIBRARY_FOLDERS if (folder := tree.resolve(each)))
    for folder in found:
        names = tree.names(folder)
        if not any(fnmatchcase(name, f"lib*.so.{version}") for name in names):
            continue
        for place, listed in ((folder, names), (f"{folder}/{_FURTHER}", tree.names(f"{folder}/{_FURTHER}"))):
            for name in listed:
                if (
                    (fnmatchcase(name, f"*.so.{version}") or (place == folder and fnmatchcase(name, _LEGACY)))
                    and (path := tree.resolve(f"{place}/{name}"))
                    and path not in seen
                ):
                    seen.add(path)
                    yield path


def _links(tree: FileTree, library: str) -> Iterator[str]:
    """Symlinks that lead to a library, as nvidia-cdi-hook takes them: `TARGET::PATH`.

    libcuda.so -> libcuda.so.1 -> libcuda.so.580.65.06 gives libcuda.so.580.65.06::.../libcuda.so.1
    and libcuda.so.1::.../libcuda.so. The toolkit reads the first from the library's SONAME, and
    makes it only where the host has it as well.
    """
    folder, _, file = library.rpartition("/")
    others = _other_names(tree, library)
    soname = next((name for name in others if _SONAME.fullmatch(name)), "")
    for name in others:
        target = file if name == soname else soname or file
        yield f"{target}::{folder}/{name}"


def _other_names(tree: FileTree, library: str) -> list[str]:
    """Return the names in the library's folder that lead to it, and libcuda.so, which programs expect."""
    folder, _, file = library.rpartition("/")
    stem = f"{file.partition('.so.')[0]}.so"
    names = [
        name
        for name in tree.names(folder)
        if name != file
        and (name == stem or name.startswith(f"{stem}."))
        and tree.resolve(f"{folder}/{name}") == library
    ]
    if stem == _UNVERSIONED and stem not in names and names:
        names.append(stem)
    return names


def _tools(tree: FileTree) -> Iterator[tuple[str, str]]:
    """Yield the paths where programs expect tools, and those without symlinks (/etc/alternatives)."""
    for tool in _TOOLS:
        for path in (f"{folder}/{tool}" for folder in _TOOL_FOLDERS):
            if resolved := tree.resolve(path):
                yield path, resolved
                break


def _firmware(tree: FileTree, version: str) -> Iterator[str]:
    for folder in _FIRMWARE:
        for name in tree.names(f"{folder}/{version}"):
            if any(fnmatchcase(name, pattern) for pattern in _FIRMWARE_FILES):
                yield f"{folder}/{version}/{name}"


def _sockets(tree: FileTree) -> Iterator[str]:
    for socket in _SOCKETS:
        found = next((f"{folder}{socket}" for folder in _SOCKET_FOLDERS if tree.resolve(f"{folder}{socket}")), None)
        if found:
            yield found
    if tree.resolve(_MPS):
        yield _MPS


def _hook_tool(host: Host, tree: FileTree) -> str:
    """Return its path on the host. Other tools can be found only if the driver root is the host's own root."""
    if host.settings.options[CDI_HOOK]:
        return host.settings.options[CDI_HOOK]
    if host.settings.options[DRIVER_ROOT] != "/":
        return ""
    return next((path for path in HOOK_PATHS if tree.resolve(path)), "")


def _hooks(tool: str, version: str, links: Sequence[str], folders: Sequence[str]) -> Iterator[Hook]:
    def hook(*args: str) -> Hook:
        return Hook(tool, (tool.rpartition("/")[2], *args), ("NVIDIA_CTK_DEBUG=false",))

    if links:
        yield hook("create-symlinks", *(word for link in links for word in ("--link", link)))
    yield hook("enable-cuda-compat", f"--host-driver-version={version}")
    yield hook("update-ldcache", *(word for folder in folders for word in ("--folder", folder)))
    yield hook("disable-device-node-modification")


def _mount(host: Host, path: str, container: str, options: tuple[str, ...]) -> Mount:
    """Return a mount. `path`: below the driver root."""
    return Mount(f"{host.settings.options[DRIVER_ROOT].rstrip('/')}{path}", container, options)
