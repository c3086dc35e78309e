"""A machine with NVIDIA's driver as a folder: NVML, libraries, programs, device nodes, /proc and /sys.

`NvidiaRoot.upstream` is what `nvidia-ctk cdi generate` finds there (hack/oracle/nvcdi), `NvidiaRoot.ours` what our driver
writes for claims; both ask the same pretended NVML. `gives` turns either into what a container gets, as sets that can be compared.
"""

import json
import os
import shutil
import stat
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.containers import kernel_with_mig
from tests.support.nvml.fake import LIBRARY, FakeNvml, empty_library, library_folder

DRIVER = "550.90.07"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
CONFIG = "/nvml.conf"
SPEC = "etc/cdi/nvidia.json"
_CONTROL = {"nvidiactl": (195, 255), "nvidia-modeset": (195, 254), "nvidia-uvm": (511, 0), "nvidia-uvm-tools": (511, 1)}
_VERSIONED = ("cuda", "cudadebugger", "nvidia-ptxjitcompiler", "nvidia-cfg", "nvidia-nvvm", "nvcuvid", "nvidia-encode")
_PROGRAMS = ("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nvidia-cuda-mps-control", "nvidia-imex")


class NvidiaRoot:
    """`bus`: PCI address of each GPU by its minor number. Raises PermissionError where device nodes cannot be made."""

    def __init__(self, folder: Path, bus: dict[int, str]) -> None:
        self.nvml = FakeNvml(folder)
        self.root = folder / "root"
        for name, numbers in _CONTROL.items():
            self.node(f"/dev/{name}", *numbers)
        for minor, address in bus.items():
            self.node(f"/dev/nvidia{minor}", 195, minor)
            self._graphics(minor, address.removeprefix("0000").lower())
        for name in _VERSIONED:
            self.file(f"{LIBRARIES}/lib{name}.so.{DRIVER}")
        empty_library(self._at(f"{LIBRARIES}/libcuda.so.{DRIVER}"), "libcuda.so.1")
        self.file(f"{LIBRARIES}/libnvidia-ml.so.{DRIVER}")
        shutil.copy(library_folder() / LIBRARY, self._at(f"{LIBRARIES}/libnvidia-ml.so.{DRIVER}"))
        self.link(f"{LIBRARIES}/{LIBRARY}", f"libnvidia-ml.so.{DRIVER}")
        self.link(f"{LIBRARIES}/libcuda.so.1", f"libcuda.so.{DRIVER}")
        self.link(f"{LIBRARIES}/libcuda.so", "libcuda.so.1")
        for name in _PROGRAMS:
            self.file(f"/usr/bin/{name}", mode=0o755)
        for name in ("gsp_ga10x.bin", "gsp_tu10x.bin", "ucodes_gh100.bin"):
            self.file(f"/lib/firmware/nvidia/{DRIVER}/{name}")
        self.file("/usr/share/glvnd/egl_vendor.d/10_nvidia.json")
        self.file(f"{LIBRARIES}/vdpau/libvdpau_nvidia.so.{DRIVER}")
        self.file(f"{LIBRARIES}/libnvidia-nvvm70.so.4")
        for daemon in ("persistenced", "fabricmanager"):
            self.file(f"/run/nvidia-{daemon}/socket")
        self.file("/tmp/nvidia-mps/control")
        self.file("/sys/module/nvidia/version", f"{DRIVER}\n")
        for path, text in kernel_with_mig().items():
            self.file(path, text)

    # --- what is there ---

    def file(self, path: str, text: str = "", mode: int = 0o644) -> None:
        place = self._at(path)
        place.write_text(text, encoding="utf-8")
        place.chmod(mode)

    def link(self, path: str, target: str) -> None:
        self._at(path).symlink_to(target)

    def node(self, path: str, major: int, minor: int) -> None:
        place = self._at(path)
        os.mknod(place, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        place.chmod(0o666)

    def capabilities(self, *minors: int) -> None:
        """Nodes of MIG capabilities, as nvidia-modprobe makes them when somebody asks for one."""
        for minor in minors:
            self.node(f"/dev/nvidia-caps/nvidia-cap{minor}", 508, minor)

    def describe(self, description: str) -> None:
        """What NVML says from now on."""
        self.nvml.describe(description)
        self.file(CONFIG, description)

    def _graphics(self, minor: int, address: str) -> None:
        for name, number in ((f"card{minor}", minor), (f"renderD{128 + minor}", 128 + minor)):
            self.node(f"/dev/dri/{name}", 226, number)
            self.file(f"/sys/bus/pci/devices/{address}/drm/{name}/dev", f"226:{number}\n")
            self.link(f"/dev/dri/by-path/pci-{address}-{'card' if name.startswith('card') else 'render'}", f"../{name}")

    def _at(self, path: str) -> Path:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    # --- who is asked ---

    def upstream(self, ask, *devices: str, mode: str = "nvml"):
        """The specification; raises LookupError with the words of the generator."""
        answer = ask({"root": str(self.root), "config": CONFIG, "mode": mode, "devices": devices or ["all"]})
        if "error" in answer:
            raise LookupError(answer["error"])
        return answer["spec"]

    def install(self, spec) -> None:
        """Put the specification where runtimes find it, as nvidia-cdi-refresh does."""
        self.file(SPEC, json.dumps(spec))

    def ours(self, *claims, brings: bool = False) -> list:
        return self.nvml.ask("prepared", str(self.root), list(claims), brings)

    def documents(self):
        """Every CDI file on the node."""
        files = [*self.root.glob("etc/cdi/*.json"), *self.root.glob("var/run/cdi/*.json")]
        return [json.loads(file.read_bytes()) for file in files]

    def gives(self, ids, documents) -> "Given":
        """What the runtime makes of these CDI devices (containerd: pkg/cdi, Cache.InjectDevices)."""
        given = Given()
        for name in dict.fromkeys(ids):
            kind, _, device = name.partition("=")
            [(spec, found)] = [
                (spec, each)
                for spec in documents
                if spec["kind"] == kind
                for each in spec["devices"]
                if each["name"] == device
            ]
            given.add(self, found["containerEdits"])
            given.add(self, spec.get("containerEdits", {}))
        return given

    def numbers(self, path: str) -> tuple[int, int]:
        found = (self.root / path.lstrip("/")).stat()
        return os.major(found.st_rdev), os.minor(found.st_rdev)


@dataclass
class Given:
    """What a container gets, each thing by what it is called in the container."""

    nodes: dict = field(default_factory=dict)
    """Path → (major, minor, permissions)."""
    mounts: dict = field(default_factory=dict)
    """Path → (path on the host or type of the file system, options)."""
    hooks: dict = field(default_factory=dict)
    """Command, with what it is about → (when, program, arguments in order)."""
    env: dict = field(default_factory=dict)
    groups: dict = field(default_factory=dict)

    def add(self, root: NvidiaRoot, edits) -> None:
        for node in edits.get("deviceNodes", ()):
            numbers = (node.get("major", 0), node.get("minor", 0))
            where = node.get("hostPath", node["path"])
            self.nodes[node["path"]] = (*(numbers if any(numbers) else root.numbers(where)), node["permissions"])
        for mount in edits.get("mounts", ()):
            self.mounts[mount["containerPath"]] = (mount["hostPath"], tuple(sorted(mount["options"])))
        for hook in edits.get("hooks", ()):
            command, *arguments = hook["args"][1:]
            key = " ".join([command, *(each for each in arguments if each.startswith("GPU-"))])
            self.hooks[key] = (hook["hookName"], hook["path"], tuple(arguments))
        self.env |= dict(entry.split("=", 1) for entry in edits.get("env", ()))
        self.groups |= dict.fromkeys(edits.get("additionalGids", ()), True)

    def against(self, theirs: "Given") -> set[str]:
        """Every difference: `kind name: upstream only`, `... ours only`, `... upstream <value>, ours <value>`."""
        found = set()
        for kind in ("nodes", "mounts", "hooks", "env", "groups"):
            mine, other = getattr(self, kind), getattr(theirs, kind)
            for name in {**mine, **other}:
                if name not in mine:
                    found.add(f"{kind} {name}: upstream only")
                elif name not in other:
                    found.add(f"{kind} {name}: ours only")
                elif mine[name] != other[name]:
                    found.add(f"{kind} {name}: upstream {other[name]}, ours {mine[name]}")
        return found
