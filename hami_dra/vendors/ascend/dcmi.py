"""Remove one vNPU: `python dcmi.py NPU CHIP VNPU`. A program of its own, because a call of the vendor's
library can hang or crash.

Run by `vnpus`; uses the standard library only. `npu-smi set -t destroy-vnpu` makes the same call, but
refuses to run in a container, where the library allows it to root and privileged ones. Source: DCMI
and npu-smi of the Ascend driver (`dcmi_set_destroy_vdevice`, `determine_run_env_support`).
"""

import ctypes
import sys

_LIBRARY = "libdcmi.so"


def destroy(npu: int, chip: int, vnpu: int) -> str:
    """Return why the vNPU cannot be removed, or nothing."""
    try:
        library = ctypes.CDLL(_LIBRARY)
        code = library.dcmi_init()
        if code:
            return f"dcmi_init failed with {code}"
        code = library.dcmi_set_destroy_vdevice(ctypes.c_int(npu), ctypes.c_int(chip), ctypes.c_uint(vnpu))
    except (OSError, AttributeError) as error:
        return f"{_LIBRARY}: {error}"
    return f"dcmi_set_destroy_vdevice failed with {code}" if code else ""


if __name__ == "__main__":
    sys.exit(destroy(*map(int, sys.argv[1:4])) or None)
