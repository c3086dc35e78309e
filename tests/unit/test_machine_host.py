"""What edits learn of the host: files, the kernel's files of a simulated machine, CDI devices of others."""

import json

from hami_dra.discovery.host import MachineHost


def host(tmp_path, *folders, **more):
    return MachineHost(kernel_root=tmp_path, cdi_folders=[tmp_path / name for name in folders or ("cdi",)], **more)


def spec(tmp_path, name, text):
    (tmp_path / "cdi").mkdir(exist_ok=True)
    (tmp_path / "cdi" / name).write_text(text)


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


def test_what_cdi_files_of_others_offer(tmp_path):
    spec(tmp_path, "nvidia.yaml", "kind: nvidia.com/gpu\ndevices: [{name: GPU-1}, {name: '0'}, 7]\n")
    spec(tmp_path, "other.json", json.dumps({"kind": "example.com/net", "devices": [{"name": "a"}]}))
    spec(tmp_path, "nvidia.hami.io-claim_u.json", json.dumps({"kind": "nvidia.hami.io/claim", "devices": []}))
    spec(tmp_path, "ours.json", json.dumps({"kind": "nvidia.hami.io/claim", "devices": [{"name": "u"}]}))
    found = host(tmp_path, "nowhere", "cdi", not_from=["nvidia.hami.io/claim"])
    assert found.cdi_devices == {"nvidia.com/gpu=GPU-1", "nvidia.com/gpu=0", "example.com/net=a"}


def test_files_that_are_broken_or_no_specifications_offer_nothing(tmp_path):
    for number, text in enumerate(("", "{", "[1]", '{"kind": 1, "devices": []}', '{"kind": "a/b", "devices": 1}')):
        spec(tmp_path, f"{number}.json", text)
        spec(tmp_path, f"{number}.yaml", text)
    spec(tmp_path, "a.txt", '{"kind": "a.b/c", "devices": [{"name": "x"}]}')
    assert host(tmp_path).cdi_devices == frozenset()


def test_a_file_that_changes_is_read_again(tmp_path):
    spec(tmp_path, "a.json", json.dumps({"kind": "a.b/c", "devices": [{"name": "x"}]}))
    found = host(tmp_path)
    assert found.cdi_devices == {"a.b/c=x"}
    spec(tmp_path, "a.json", json.dumps({"kind": "a.b/c", "devices": [{"name": "longer"}]}))
    assert found.cdi_devices == {"a.b/c=longer"}
