"""What containers use, from shared regions written by a C program that has HAMi-core's structs, and from hostile files."""

import os
import socket
import struct
import subprocess
import time

import pytest
from msgspec.structs import asdict

from hami_dra.api.options import VendorSettings
from hami_dra.monitor.usage import CardUsage, ContainerUsage, GrantedContainer
from hami_dra.vendors.nvidia import region_files, shared_region
from hami_dra.vendors.nvidia.hami_core import CACHE, PRIORITY
from hami_dra.vendors.nvidia.options import LIBRARY_FOLDER, PRIORITY_FEEDBACK
from hami_dra.vendors.nvidia.priority import ACTIVE
from hami_dra.vendors.nvidia.shared_region import V0, V1, counters_of, layout_of
from hami_dra.vendors.nvidia.usage_reader import RegionReader
from tests.support.regions import regions
from tests.support.regions.regions import Region, Use

NOW = 1_800_000_000
MIB = 1 << 20
GIB = 1 << 30
A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
IN_CONTAINER = "/usr/local/vgpu"


@pytest.fixture
def host(tmp_path):
    return Host(tmp_path)


class Host:
    """The folders of containers, as the driver makes them."""

    def __init__(self, folder):
        self.parent = folder / "vgpu/containers"
        self.parent.mkdir(parents=True)
        self.reader = self.reading()

    def reading(self, *, feedback=True, now=NOW):
        written = {LIBRARY_FOLDER: str(self.parent.parent.parent), PRIORITY_FEEDBACK: feedback}
        return RegionReader(VendorSettings.of(written), lambda: now)

    def container(self, name="one", cards=(A,), **env):
        folder = self.parent / f"uid_{name}"
        folder.mkdir(exist_ok=True)
        folder.chmod(0o777)
        return GrantedContainer(
            view=name,
            label=f"default/{name}, container main",
            env={CACHE: f"{IN_CONTAINER}/0123456789abcdef.cache", **env},
            mounts={IN_CONTAINER: str(folder), "/etc/ld.so.preload": "/elsewhere"},
            cards=dict.fromkeys(cards, 32 * GIB),
        )

    def path(self, name="one"):
        return self.parent / f"uid_{name}/0123456789abcdef.cache"

    def sample(self, *containers):
        return self.reader.sample(containers or (self.container(),))

    def problem(self):
        """What is said of the only container, of which nothing is known."""
        sample = self.sample()
        assert sample.readings == {}
        (problem,) = sample.problems
        prefix = f"default/one, container main: {self.path()} tells nothing of what it uses: "
        assert problem.startswith(prefix)
        return problem.removeprefix(prefix)

    def counters(self, name="one", layout=V1):
        """(utilization switch, recent kernel) as they are in the file."""
        return struct.unpack_from("=ii", self.path(name).read_bytes(), layout.utilization_switch)


# --- layout ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("layout", [V0, V1], ids=["v0", "v1"])
def test_the_layout_is_that_of_the_c_structs(layout):
    properties = {"utilization_switch": layout.utilization_switch, "recent_kernel": layout.recent_kernel}
    ours = {name: value for name, value in asdict(layout).items() if name not in {"version", "last_kernel"}}
    assert ours | properties == regions.offsets(layout.version)
    if layout.last_kernel is not None:
        assert layout.last_kernel == layout.counters + 16


@pytest.mark.parametrize(
    ("major", "size", "layout"),
    [(1, V1.size, V1), (1, V1.size + 1, V1), (1, 1 << 50, V1), (0, V0.size, V0), (77, V1.size - 1, V0)],
)
def test_versions_are_told_apart_as_hamis_monitor_does(major, size, layout):
    assert layout_of(struct.pack("=iii", shared_region.MAGIC, major, 0), size) is layout


@pytest.mark.parametrize(("major", "size"), [(0, V1.size), (2, V1.size), (1, V0.size - 1), (1, 12)])
def test_other_versions_and_sizes_are_not_known(major, size):
    with pytest.raises(shared_region.NotARegion, match=f"{size} bytes and version {major}"):
        layout_of(struct.pack("=iii", shared_region.MAGIC, major, 0), size)


# --- reading ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", [0, 1])
def test_what_the_processes_of_a_container_use_is_added_up(host, version):
    first = {0: Use(100 * MIB, 20 * MIB, 300 * MIB, 5 * MIB, 425 * MIB, busy=30), 1: Use(total=7 * MIB)}
    second = {0: Use(100 * MIB, 10 * MIB, 0, 0, 110 * MIB, busy=25)}
    region = Region([B, A], [(1, first), (1, second), (0, {0: Use(total=GIB)})], last_kernel=NOW - 90, version=version)
    container = host.container(cards=(A, B))
    region.write(host.path())
    sample = host.sample(container)
    assert sample.problems == ()
    assert sample.readings == {
        "one": ContainerUsage(
            cards={
                B: CardUsage(
                    memory_used=535 * MIB,
                    memory_context=200 * MIB,
                    memory_module=30 * MIB,
                    memory_buffer=300 * MIB,
                    utilization=55.0,
                ),
                A: CardUsage(memory_used=7 * MIB, memory_context=0, memory_module=0, memory_buffer=0, utilization=0.0),
            },
            last_kernel=NOW - 90 if version else None,
        )
    }


def test_a_container_whose_programs_have_not_begun_or_whose_file_is_in_its_memory_says_nothing(host):
    private = GrantedContainer(view="two", label="two", env={CACHE: f"{IN_CONTAINER}/x.cache"}, cards={A: GIB})
    none = GrantedContainer(view="three", label="three")
    sample = host.sample(host.container(), private, none)
    assert (sample.readings, sample.problems) == ({}, ())


def test_cards_that_were_not_granted_and_texts_of_the_file_go_no_further(host):
    host.container()
    Region(['GPU-x"} 1', B, A[:-1], A + "x"], [(1, {card: Use(total=GIB) for card in range(4)})]).write(host.path())
    assert host.sample().readings["one"].cards == {}


def test_impossible_numbers_are_left_out_and_the_others_stay(host):
    host.container()
    uses = {0: Use(context=1 << 63, module=5, data=33 * GIB, total=(1 << 64) - 1, busy=201)}
    Region([A], [(1, uses), (1, uses)], last_kernel=NOW + 10 * 86_400).write(host.path())
    usage = host.sample().readings["one"]
    assert usage.cards == {A: CardUsage(memory_module=10)}
    assert usage.last_kernel is None


def test_percents_that_add_up_to_more_than_a_card_are_a_card(host):
    host.container()
    Region([A], [(1, {0: Use(busy=70)}), (1, {0: Use(busy=35)})]).write(host.path())
    assert host.sample().readings["one"].cards[A].utilization == 100.0


# --- hostile files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "commands",
    [
        ["processes 2147483647", "cards 18446744073709551615"],
        ["processes -2147483648", "cards 0"],
        ["processes 1024", "cards 16"],
    ],
)
def test_absurd_counts_are_clamped(host, commands):
    host.container()
    Region([A], [(1, {0: Use(total=MIB)})], more=commands).write(host.path())
    used = host.sample().readings["one"].cards
    assert used == {} or used[A].memory_used in {0, MIB}


@pytest.mark.parametrize("size", [0, 1, 11])
def test_a_file_that_is_cut_off(host, size):
    host.container()
    Region([A]).write(host.path())
    os.truncate(host.path(), size)
    assert host.problem() == f"it has {size} bytes"


@pytest.mark.parametrize("size", [12, V0.size - 1])
def test_a_file_of_no_known_size(host, size):
    host.container()
    Region([A]).write(host.path())
    os.truncate(host.path(), size)
    assert "no version of it is known" in host.problem()


def test_a_file_that_is_cut_off_while_it_is_read(host, monkeypatch):
    host.container()
    Region([A], [(1, {})]).write(host.path())
    read = region_files.read_layout

    def read_and_cut(file):
        layout = read(file)
        os.truncate(host.path(), 2_000)
        return layout

    monkeypatch.setattr("hami_dra.vendors.nvidia.usage_reader.read_layout", read_and_cut)
    assert host.problem() == "it was cut off while it was read"


def test_a_wrong_magic_number(host):
    host.container()
    host.path().write_bytes(os.urandom(V1.size))
    assert host.problem() == "it does not begin as HAMi-core's files do"


@pytest.mark.parametrize("kind", ["fifo", "folder", "socket", "link", "dangling", "loop"])
def test_what_is_no_file_is_not_even_opened(host, kind, tmp_path, monkeypatch):
    host.container()
    path, secret = host.path(), tmp_path / "secret"
    Region([A], [(1, {0: Use(total=MIB)})]).write(secret)
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as it:
            monkeypatch.chdir(path.parent)  # a socket's path has 107 bytes at most
            it.bind(path.name)
    else:
        path.symlink_to({"link": secret, "dangling": "nowhere", "loop": path.name}[kind])
    assert host.problem() == "it is no regular file"


def test_a_file_with_a_second_name_may_be_another_one_s(host, tmp_path):
    host.container()
    Region([A]).write(tmp_path / "other")
    host.path().hardlink_to(tmp_path / "other")
    assert host.problem() == "it has 2 names"


def test_a_folder_that_is_a_link_is_not_followed(host, tmp_path):
    container = host.container()
    (tmp_path / "real").mkdir()
    host.path().parent.rmdir()
    host.path().parent.symlink_to(tmp_path / "real")
    Region([A]).write(tmp_path / "real" / host.path().name)
    assert host.sample(container).problems


def test_a_sparse_file_of_terabytes_costs_as_much_as_any_other(host, monkeypatch):
    host.container()
    Region([A], [(1, {0: Use(total=MIB)})]).write(host.path())
    os.truncate(host.path(), 1 << 43)
    read = []
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, start: read.append(size) or pread(file, size, start))
    assert host.sample().readings["one"].cards[A].memory_used == MIB
    assert sum(read) < 10_000


def test_a_region_that_is_rewritten_while_it_is_read_gives_numbers_or_none(host):
    host.container()
    Region([A]).write(host.path())
    busy = subprocess.Popen([regions.program(), "busy", host.path(), "60"])
    try:
        until = time.monotonic() + 0.5
        while time.monotonic() < until:
            sample = host.sample()
            for usage in sample.readings.values():
                assert usage.cards.keys() <= {A}
                assert all(
                    each.memory_used is None or 0 <= each.memory_used <= 32 * GIB for each in usage.cards.values()
                )
    finally:
        busy.kill()
        busy.wait()


def test_one_hostile_container_hides_no_other(host):
    containers = [host.container(name) for name in ("bad", "good")]
    os.mkfifo(host.path("bad"))
    Region([A], [(1, {0: Use(total=MIB)})]).write(host.path("good"))
    sample = host.sample(*containers)
    assert list(sample.readings) == ["good"]
    assert len(sample.problems) == 1


# --- priorities ------------------------------------------------------------------------------------------------------


def launched(uuids=(A,), **what):
    """The region of a container that has launched a kernel just now; `recent` as HAMi-core has it at the start."""
    return Region(list(uuids), **({"recent": 2, "last_kernel": NOW} | what))


def test_the_less_important_waits_and_goes_on(host):
    high, low = host.container("high", **{PRIORITY: "0"}), host.container("low", **{PRIORITY: "1"})
    launched().write(host.path("high"))
    launched().write(host.path("low"))
    host.sample(high, low)
    assert (host.counters("high"), host.counters("low")) == ((1, 2), (1, -1))
    host.reader = host.reading(now=NOW + ACTIVE)
    host.sample(high, low)
    assert host.counters("low") == (1, -1)
    host.reader = host.reading(now=NOW + ACTIVE + 1)
    host.sample(high, low)
    assert (host.counters("high"), host.counters("low")) == ((1, 2), (1, 0))


def test_version_0_has_no_times_and_tells_by_its_counter(host):
    high, low = host.container("high", **{PRIORITY: "0"}), host.container("low")
    for name in ("high", "low"):
        Region([A], recent=2, version=0).write(host.path(name))
    host.sample(high, low)
    assert (host.counters("high", V0), host.counters("low", V0)) == ((1, 1), (1, -1))
    host.sample(high, low)  # no kernel since
    assert (host.counters("high", V0), host.counters("low", V0)) == ((1, 0), (1, 0))


@pytest.mark.parametrize("switch", [0, 1, -7])
def test_limits_of_cores_always_hold_also_for_one_that_is_alone(host, switch):
    host.container("one")
    launched(switch=switch).write(host.path("one"))
    host.sample(host.container("one"))
    assert host.counters("one") == (1, 2)


def test_containers_on_other_cards_do_not_count(host):
    high, low = host.container("high", **{PRIORITY: "0"}), host.container("low", cards=(B,))
    launched([A, B]).write(host.path("high"))  # it says that it has both
    launched([B]).write(host.path("low"))
    host.sample(high, low)
    assert host.counters("low") == (1, 2)


def test_a_priority_that_a_container_writes_into_its_file_counts_for_nothing(host):
    containers = host.container("bad"), host.container("good")
    launched(recent=2_000_000_000, priority=-5).write(host.path("bad"))
    launched().write(host.path("good"))
    host.sample(*containers)
    assert host.counters("good") == (1, 2)


@pytest.mark.parametrize("ahead", [-ACTIVE - 1, ACTIVE + 1, 10**9])
def test_a_kernel_of_long_ago_or_of_the_future_makes_nobody_wait(host, ahead):
    high, low = host.container("high", **{PRIORITY: "0"}), host.container("low")
    launched(last_kernel=int(NOW + ahead)).write(host.path("high"))
    launched().write(host.path("low"))
    host.sample(high, low)
    assert host.counters("low") == (1, 2)


def test_nothing_but_the_two_counters_is_written(host):
    containers = host.container("high", **{PRIORITY: "0"}), host.container("low"), host.container("old")
    for version, name in ((1, "high"), (1, "low"), (0, "old")):
        launched(processes=[(1, {0: Use(total=MIB)})], switch=0, version=version).write(host.path(name))
    before = {name: bytearray(host.path(name).read_bytes()) for name in ("high", "low", "old")}
    host.sample(*containers)
    for name, layout in (("high", V1), ("low", V1), ("old", V0)):
        after = host.path(name).read_bytes()
        assert after != before[name]
        start = layout.utilization_switch
        before[name][start : start + 8] = after[start : start + 8]
        assert after == before[name]
        assert counters_of(layout, after[layout.counters :]).processes == 1


def test_the_operator_may_leave_priorities_to_hamis_monitor(host):
    containers = host.container("high", **{PRIORITY: "0"}), host.container("low")
    for name in ("high", "low"):
        launched(switch=0).write(host.path(name))
    sample = host.reading(feedback=False).sample(containers)
    assert sample.readings.keys() == {"high", "low"}
    assert host.counters("high") == host.counters("low") == (0, 2)


def test_who_waits_goes_on_when_the_driver_ends(host):
    containers = host.container("high", **{PRIORITY: "0"}), host.container("low")
    for name in ("high", "low"):
        launched().write(host.path(name))
    host.sample(*containers)
    assert host.counters("low") == (1, -1)
    host.reader.close()
    assert host.counters("low") == (1, 0)
    host.sample(*containers)  # a reading that was under way
    assert host.counters("low")[1] == 0
    host.reader.close()


@pytest.mark.parametrize("feedback", [True, False])
def test_no_order_outlives_a_driver_that_was_killed(host, feedback):
    """Before any claim is known: also orders of older drivers, which switched limits off."""
    for name, switch, recent, version in (("low", 1, -1, 1), ("alone", 0, 2, 1), ("old", 0, -1, 0), ("well", 1, 1, 1)):
        host.container(name)
        launched(switch=switch, recent=recent, version=version).write(host.path(name))
    host.container("hami")
    of_hami = host.path("hami").with_name("a-random-uuid.cache")
    of_hami.write_bytes(host.path("low").read_bytes())
    os.mkfifo(host.path("hami"))
    well = host.path("well").stat().st_mtime_ns
    problems = host.reading(feedback=feedback).release()
    assert [host.counters(name) for name in ("low", "alone", "well")] == [(1, 0), (1, 2), (1, 1)]
    assert host.counters("old", V0) == (1, 0)
    assert host.path("well").stat().st_mtime_ns == well
    assert struct.unpack_from("=ii", of_hami.read_bytes(), V1.utilization_switch) == (1, -1)
    assert problems == (f"{host.path('hami')} tells nothing of what it uses: it is no regular file",)


def test_a_file_that_cannot_be_written_is_a_problem_and_no_error(host, monkeypatch):
    host.container()
    Region([A], switch=0).write(host.path())
    monkeypatch.setattr(os, "pwrite", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    sample = host.sample()
    assert sample.readings.keys() == {"one"}
    assert sample.problems[0].endswith("No space left on device")


# --- what is left behind ---------------------------------------------------------------------------------------------


def test_the_driver_s_folders_are_known_by_a_marker_that_no_container_reaches(host):
    for name in ("gone", "used", "hami"):
        (host.parent / name).mkdir()
    for name in ("gone", "used", "removed"):
        (host.parent / f"{name}.hami-dra").touch()
    for number in range(100):
        (host.parent / f"gone/{number}").touch()
    os.utime(host.parent / "gone", (NOW + 10**8, NOW + 10**8))
    assert host.reader.own_folders() == [str(host.parent / name) for name in ("gone", "removed", "used")]


def test_without_a_folder_there_is_nothing(tmp_path):
    settings = VendorSettings.of({LIBRARY_FOLDER: str(tmp_path / "none")})
    reader = RegionReader(settings, lambda: NOW)
    assert (reader.own_folders(), reader.release()) == ([], ())
