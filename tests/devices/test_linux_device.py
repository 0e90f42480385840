"""The Linux adapter on /proc and /sys trees written for the purpose: none is a copy of a real machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from dlfp_edge.device import Memory
from dlfp_edge.devices.cgroup import limiting_groups
from dlfp_edge.devices.generic import GenericDevice
from dlfp_edge.devices.linux import LinuxDevice
from dlfp_edge.devices.sysfs import read_cpu_list

CPU = "sys/devices/system/cpu/cpu{}"


def machine(root: Path, files: Mapping[str, str], cpus: int = 4) -> LinuxDevice:
    """A device over the written `files`, on which the process may use CPUs 0 to `cpus` - 1."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return LinuxDevice(root, lambda: set(range(cpus)))


def per_cpu(file: str, values: list[str]) -> dict[str, str]:
    return {f"{CPU.format(cpu)}/{file}": value for cpu, value in enumerate(values)}


def test_a_machine_that_says_nothing_has_its_affinity(tmp_path: Path) -> None:
    device = machine(tmp_path, {}, cpus=3)
    cpu = device.cpu()
    assert (cpu.usable, cpu.quota, cpu.siblings, cpu.performance) == ((0, 1, 2), None, (), (0, 1, 2))
    assert cpu.limit == 3
    assert device.throttled() is None
    assert device.describe()["cpu_model"] is None


@pytest.mark.parametrize("mount", ["sys/fs/cgroup", "sys/fs/cgroup/unified"])
def test_quota_v2(tmp_path: Path, mount: str) -> None:
    device = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/user.slice/app\n",
            f"{mount}/user.slice/app/cpu.max": "250000 100000\n",
            f"{mount}/user.slice/app/cpu.stat": "usage_usec 5\nnr_periods 9\nnr_throttled 7\nthrottled_usec 3\n",
        },
    )
    assert device.cpu().quota == 2.5
    assert device.cpu().limit == 2
    assert device.throttled() == 7


@pytest.mark.parametrize(("granted", "usable"), [(250000, 2), (50000, 1), (400000, 4), (9, 1)])
def test_cpus_that_a_quota_does_not_pay_for_are_left_alone(tmp_path: Path, granted: int, usable: int) -> None:
    files = {"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": f"{granted} 100000\n"}
    cpu = machine(tmp_path, files, cpus=4).cpu()
    assert len(cpu.usable) == cpu.limit == usable
    assert set(cpu.performance) <= set(cpu.usable)


def test_under_a_quota_fast_cores_go_first_and_hosts_choose_differently(tmp_path: Path) -> None:
    files = {"proc/self/cgroup": "0::/app\n", "sys/fs/cgroup/app/cpu.max": "250000 100000\n"}
    hybrid = files | per_cpu("cpu_capacity", ["1024", "1024", "1024", "400", "400", "400"])
    chosen = set()
    for host in range(12):
        root = tmp_path / str(host)
        device = machine(root, {**hybrid, "proc/sys/kernel/hostname": f"box-{host}\n"}, cpus=6)
        chosen.add(device.cpu().usable)
    assert {cpu for pair in chosen for cpu in pair} == {0, 1, 2}
    assert len(chosen) > 1


def test_the_smallest_quota_on_the_way_up_counts(tmp_path: Path) -> None:
    device = machine(
        tmp_path,
        {
            "proc/self/cgroup": "0::/a/b/c\n",
            "sys/fs/cgroup/a/b/c/cpu.max": "max 100000\n",
            "sys/fs/cgroup/a/b/c/cpu.stat": "nr_throttled 100\n",
            "sys/fs/cgroup/a/b/cpu.max": "300000 100000\n",
            "sys/fs/cgroup/a/b/cpu.stat": "nr_throttled 2\n",
            "sys/fs/cgroup/a/cpu.max": "150000 100000\n",
            "sys/fs/cgroup/a/cpu.stat": "nr_throttled 3\n",
        },
    )
    assert device.cpu().quota == 1.5
    assert device.throttled() == 5, "a group without a quota stops nobody"


@pytest.mark.parametrize("folder", ["cpu", "cpu,cpuacct", "cpuacct,cpu"])
def test_quota_v1(tmp_path: Path, folder: str) -> None:
    device = machine(
        tmp_path,
        {
            "proc/self/cgroup": f"5:memory:/elsewhere\n4:{folder}:/box\n0::/\n",
            f"sys/fs/cgroup/{folder}/box/cpu.cfs_quota_us": "50000\n",
            f"sys/fs/cgroup/{folder}/box/cpu.cfs_period_us": "100000\n",
            f"sys/fs/cgroup/{folder}/box/cpu.stat": "nr_periods 4\nnr_throttled 1\nthrottled_time 9\n",
            f"sys/fs/cgroup/{folder}/cpu.cfs_quota_us": "-1\n",
            f"sys/fs/cgroup/{folder}/cpu.cfs_period_us": "100000\n",
        },
    )
    assert device.cpu().quota == 0.5
    assert device.cpu().limit == 1, "half a CPU still has to be worth one thread"
    assert device.throttled() == 1


@pytest.mark.parametrize("path", ["/docker/0123abcd", "/../../other", "/gone (deleted)"])
def test_a_container_sees_its_group_at_the_mount(tmp_path: Path, path: str) -> None:
    device = machine(
        tmp_path / "inner",
        {"proc/self/cgroup": f"0::{path}\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"},
    )
    outside = tmp_path / "inner/sys/other"
    outside.mkdir()
    (outside / "cpu.max").write_text("1000 100000\n")
    assert device.cpu().quota == 2.0


def test_a_container_without_a_cgroup_file_or_sysfs(tmp_path: Path) -> None:
    quota = {"sys/fs/cgroup/cpu/cpu.cfs_quota_us": "100000", "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000"}
    assert machine(tmp_path / "v1", quota).cpu().quota == 1.0
    assert machine(tmp_path / "none", {"proc/self/cgroup": "0::/\n"}).cpu().quota is None


@pytest.mark.parametrize(
    "text", ["", "max 100000", "max", "100000", "x 100000", "100000 0", "-5 100000", "1 2 3 4x", "\0\0", "9e9 1"]
)
def test_a_malformed_quota_is_no_quota_or_a_positive_one(tmp_path: Path, text: str) -> None:
    device = machine(tmp_path, {"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": text})
    assert device.cpu().quota in (None, 0.5)


@pytest.mark.parametrize("text", ["", "rubbish", "::::", "4:cpu", "0:", "\x00", "4:cpu:../../../etc"])
def test_a_malformed_cgroup_file_raises_nothing(tmp_path: Path, text: str) -> None:
    machine(tmp_path, {"proc/self/cgroup": text})
    for group in limiting_groups(tmp_path):
        assert tmp_path in group.folder.parents


def test_a_throttle_count_that_cannot_be_read_is_unknown(tmp_path: Path) -> None:
    device = machine(
        tmp_path, {"sys/fs/cgroup/cpu.max": "100000 100000", "sys/fs/cgroup/cpu.stat": "nr_throttled many"}
    )
    assert device.cpu().quota == 1.0
    assert device.throttled() is None


def test_smt_siblings_among_the_usable(tmp_path: Path) -> None:
    pairs = ["0,4", "1,5", "2,6", "3,7", "0,4", "1,5", "2,6", "3,7"]
    files = per_cpu("topology/thread_siblings_list", pairs)
    assert machine(tmp_path, files, cpus=8).cpu().siblings == ((0, 4), (1, 5), (2, 6), (3, 7))
    assert machine(tmp_path, files, cpus=6).cpu().siblings == ((0, 4), (1, 5))
    assert machine(tmp_path, files, cpus=4).cpu().siblings == ()


def test_malformed_siblings_are_left_out(tmp_path: Path) -> None:
    files = per_cpu("topology/thread_siblings_list", ["0-1", "0-1", "3-2", "0,2"])
    assert machine(tmp_path, files).cpu().siblings == ((0, 1),)


def test_a_hybrid_part_names_its_performance_cores(tmp_path: Path) -> None:
    files = {"sys/devices/cpu_core/cpus": "0-1\n", "sys/devices/cpu_atom/cpus": "2-3\n"}
    device = machine(tmp_path, files)
    assert device.cpu().performance == (0, 1)
    only_slow = LinuxDevice(tmp_path, lambda: {2, 3})
    assert only_slow.cpu().performance == (2, 3), "the fast ones of those it may use"


@pytest.mark.parametrize("file", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
def test_fast_cores_by_capacity_or_clock(tmp_path: Path, file: str) -> None:
    files = per_cpu(file, ["400", "400", "800", "1024"])
    assert machine(tmp_path, files).cpu().performance == (2, 3)


def test_capacity_goes_before_clock(tmp_path: Path) -> None:
    files = per_cpu("cpu_capacity", ["1024", "1024", "300", "300"])
    files |= per_cpu("cpufreq/cpuinfo_max_freq", ["2000000", "2000000", "3000000", "3000000"])
    assert machine(tmp_path, files).cpu().performance == (0, 1)


@pytest.mark.parametrize("values", [["900", "1000", "950", "1000"], ["1000", "x", "10", "1000"], ["0", "0", "0", "0"]])
def test_cores_alike_or_not_known_are_all_fast(tmp_path: Path, values: list[str]) -> None:
    assert machine(tmp_path, per_cpu("cpu_capacity", values)).cpu().performance == (0, 1, 2, 3)


@pytest.mark.parametrize(
    ("text", "ids"),
    [
        ("0-3,8", {0, 1, 2, 3, 8}),
        ("5", {5}),
        ("", None),
        ("3-1", None),
        ("0-99999999999", None),
        ("-1", None),
        ("a", None),
    ],
)
def test_cpu_lists(tmp_path: Path, text: str, ids: set[int] | None) -> None:
    (tmp_path / "list").write_text(text)
    assert read_cpu_list(tmp_path / "list") == ids


def test_description(tmp_path: Path) -> None:
    device = machine(
        tmp_path,
        {
            "proc/cpuinfo": "processor\t: 0\nmodel name\t: Written For Tests 9000\nflags\t\t: fpu hypervisor avx\n",
            "proc/meminfo": "MemTotal:       1024 kB\nMemFree:  1 kB\n",
            "proc/sys/kernel/osrelease": "6.0-written\n",
        },
    )
    described = device.describe()
    assert described["cpu_model"] == "Written For Tests 9000"
    assert described["memory_bytes"] == 1 << 20
    assert described["kernel"] == "6.0-written"
    assert described["virtual_machine"] is True


def test_a_board_names_itself_in_the_device_tree(tmp_path: Path) -> None:
    device = machine(tmp_path, {"proc/cpuinfo": "processor\t: 0\n", "proc/device-tree/model": "Board 5\0"})
    assert device.describe()["cpu_model"] == "Board 5"
    assert device.describe()["virtual_machine"] is None


def test_unreadable_files_are_unknown(tmp_path: Path) -> None:
    for folder in ("proc/self/cgroup", "proc/cpuinfo", "proc/meminfo", "sys/devices/cpu_core/cpus"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/sys/kernel").mkdir(parents=True)
    (tmp_path / "proc/sys/kernel/osrelease").write_bytes(b"\xff\xfe6.1")
    device = machine(tmp_path, {})
    assert device.cpu().limit == 4
    assert device.describe()["memory_bytes"] is None


def test_this_machine() -> None:
    for device in (LinuxDevice(), GenericDevice()):
        if device.supported():
            cpu = device.cpu()
            assert cpu.usable
            assert 1 <= cpu.limit <= len(cpu.usable)
            assert set(cpu.performance) <= set(cpu.usable)
            assert device.describe()["memory_bytes"] > 0


MEMINFO = "MemTotal:       8000000 kB\nMemFree:  100 kB\nMemAvailable:   5000000 kB\n"


def test_memory_without_a_limit(tmp_path: Path) -> None:
    device = machine(tmp_path, {"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": "max\n"})
    assert device.memory() == Memory(8_000_000 * 1024, 5_000_000 * 1024)


def test_memory_of_a_container(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/box/app\n",
        "sys/fs/cgroup/box/app/memory.max": "max\n",
        "sys/fs/cgroup/box/memory.max": "1000000000\n",
        "sys/fs/cgroup/box/memory.current": "900000000\n",
        "sys/fs/cgroup/box/memory.stat": "anon 100000000\ninactive_file 300000000\nactive_file 400000000\n",
    }
    assert machine(tmp_path, files).memory() == Memory(1_000_000_000, 800_000_000), "pages of files can be dropped"
    (tmp_path / "sys/fs/cgroup/box/app/memory.high").write_text("150000000\n")
    (tmp_path / "sys/fs/cgroup/box/app/memory.current").write_text("200000000\n")
    assert machine(tmp_path, {}).memory() == Memory(150_000_000, 0)


def test_memory_v1(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "5:memory:/box\n4:cpu:/elsewhere\n",
        "sys/fs/cgroup/memory/box/memory.limit_in_bytes": "600000000\n",
        "sys/fs/cgroup/memory/box/memory.usage_in_bytes": "500000000\n",
        "sys/fs/cgroup/memory/box/memory.stat": "inactive_file 1\ntotal_inactive_file 50000000\ntotal_active_file 0\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
    }
    assert machine(tmp_path, files).memory() == Memory(600_000_000, 150_000_000)


@pytest.mark.parametrize("text", ["", "rubbish", "-1", "1e9", "9" * 30])
def test_a_malformed_memory_limit_is_none(tmp_path: Path, text: str) -> None:
    device = machine(tmp_path, {"proc/meminfo": MEMINFO, "sys/fs/cgroup/memory.max": text})
    assert device.memory().total == 8_000_000 * 1024


def test_memory_nobody_knows(tmp_path: Path) -> None:
    assert machine(tmp_path, {}).memory() == Memory(None, None)
    generic = GenericDevice().memory()
    assert generic.total is not None
    assert generic.available is not None
    assert 0 < generic.available <= generic.total
