"""What edits learn of the host: files, the kernel's files of a simulated machine, CDI devices of others."""

import json

from hami_dra.api.containers import CdiDevice
from hami_dra.discovery.host import MachineHost


def host(tmp_path, *folders, **more):
    return MachineHost(kernel_root=tmp_path, cdi_folders=[tmp_path / name for name in folders or ("cdi",)], **more)


def spec(tmp_path, name, text, folder="cdi"):
    (tmp_path / folder).mkdir(exist_ok=True)
    (tmp_path / folder / name).write_text(text)


def gpus(*names, **edits):
    return json.dumps(
        {"kind": "nvidia.com/gpu", "devices": [{"name": name, "containerEdits": edits} for name in names]}
    )


def test_files_of_the_kernel_are_below_its_root(tmp_path):
    drm = tmp_path / "sys/bus/pci/devices/0000:08:00.0/drm"
    for name in ("renderD128", "card1"):
        (drm / name).mkdir(parents=True)
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/x").write_text("30\n")
    found = host(tmp_path)
    assert found.names("/sys/bus/pci/devices/0000:08:00.0/drm") == ("card1", "renderD128")
    assert found.names("/sys/nothing") == ()
    assert (found.read("/proc/x"), found.read("/proc/y")) == ("30\n", None)
    assert found.exists("/proc/x")
    assert found.exists(str(tmp_path))
    assert not found.exists(str(tmp_path / "nothing"))


def test_a_link_that_leads_nowhere_is_no_file(tmp_path):
    """runc refuses a mount of one."""
    (tmp_path / "there").touch()
    for name in ("there", "nowhere"):
        (tmp_path / f"to-{name}").symlink_to(tmp_path / name)
    assert host(tmp_path).exists(str(tmp_path / "to-there"))
    assert not host(tmp_path).exists(str(tmp_path / "to-nowhere"))


def test_what_cdi_files_of_others_offer(tmp_path):
    spec(tmp_path, "nvidia.yaml", "kind: nvidia.com/gpu\ndevices: [{name: GPU-1}, {name: '0'}, 7]\n")
    spec(tmp_path, "other.json", json.dumps({"kind": "example.com/net", "devices": [{"name": "a"}]}))
    spec(tmp_path, "nvidia.hami.io-claim_u.json", json.dumps({"kind": "nvidia.hami.io/claim", "devices": []}))
    spec(tmp_path, "ours.json", json.dumps({"kind": "nvidia.hami.io/claim", "devices": [{"name": "u"}]}))
    found = host(tmp_path, "nowhere", "cdi", not_from=["nvidia.hami.io/claim"])
    assert set(found.cdi_devices) == {"nvidia.com/gpu=GPU-1", "nvidia.com/gpu=0", "example.com/net=a"}


def test_files_that_are_broken_or_no_specifications_offer_nothing(tmp_path):
    for number, text in enumerate(("", "{", "[1]", '{"kind": 1, "devices": []}', '{"kind": "a/b", "devices": 1}')):
        spec(tmp_path, f"{number}.json", text)
        spec(tmp_path, f"{number}.yaml", text)
    spec(tmp_path, "a.txt", '{"kind": "a.b/c", "devices": [{"name": "x"}]}')
    assert host(tmp_path).cdi_devices == {}


def test_a_file_that_changes_is_read_again(tmp_path):
    spec(tmp_path, "a.json", json.dumps({"kind": "a.b/c", "devices": [{"name": "x"}]}))
    found = host(tmp_path)
    assert set(found.cdi_devices) == {"a.b/c=x"}
    spec(tmp_path, "a.json", json.dumps({"kind": "a.b/c", "devices": [{"name": "longer"}]}))
    assert set(found.cdi_devices) == {"a.b/c=longer"}


def test_a_device_that_two_files_of_a_folder_describe_is_no_device(tmp_path, caplog):
    """As CDI resolves it: also where a folder of higher priority has it once more."""
    spec(tmp_path, "nvidia.json", gpus("0", "1"), "etc")
    spec(tmp_path, "old.json", gpus("1"), "etc")
    spec(tmp_path, "more.json", gpus("1", "2"), "run")
    found = host(tmp_path, "etc", "run")
    assert set(found.cdi_devices) == {"nvidia.com/gpu=0", "nvidia.com/gpu=2"}
    assert set(found.cdi_devices) == {"nvidia.com/gpu=0", "nvidia.com/gpu=2"}
    (reported,) = [record.message for record in caplog.records]
    files = f"{tmp_path}/etc/nvidia.json and in {tmp_path}/etc/old.json"
    assert reported == f"CDI device nvidia.com/gpu=1 is in {files}, so that no runtime resolves it: remove one of them"


def test_the_folder_of_higher_priority_counts(tmp_path, caplog):
    spec(tmp_path, "nvidia.json", gpus("0", deviceNodes=[{"path": "/dev/nvidia0"}]), "etc")
    spec(tmp_path, "nvidia.json", gpus("0", deviceNodes=[{"path": "/dev/nvidia1"}]), "run")
    spec(tmp_path, "nvidia.yml", gpus("3"), "run")
    assert host(tmp_path, "etc", "run").cdi_devices == {
        "nvidia.com/gpu=0": CdiDevice(file=f"{tmp_path}/run/nvidia.json", device_nodes=frozenset({"/dev/nvidia1"}))
    }
    assert not caplog.records


def test_what_a_device_brings_are_paths_on_the_host(tmp_path):
    mounts = [{"hostPath": "/usr/lib/libcuda.so.550.1", "containerPath": "/lib/libcuda.so"}, {}, 7]
    spec(
        tmp_path,
        "nvidia.json",
        json.dumps(
            {
                "kind": "nvidia.com/gpu",
                "containerEdits": {"mounts": mounts, "deviceNodes": [{"path": "/dev/nvidiactl"}]},
                "devices": [
                    {
                        "name": "0",
                        "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/host/nvidia0"}]},
                    }
                ],
            }
        ),
    )
    (device,) = host(tmp_path).cdi_devices.values()
    assert device.device_nodes == {"/host/nvidia0"}
    assert device.mounts == {"/usr/lib/libcuda.so.550.1"}
