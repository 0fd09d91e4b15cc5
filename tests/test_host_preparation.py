# SPDX-License-Identifier: Apache-2.0
"""All settings of a host together: planned, applied, looked at again, taken back. systemd is acted out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import pytest
from host_machine import Host

from inference.host import at_boot, modules, owned, preparation, system, units
from inference.host.machine import HostError
from inference.topology.collect import Answer

UBUNTU_UNIT = """\
[Unit]
Description=NVIDIA Persistence Daemon
StopWhenUnneeded=true
[Service]
Type=forking
ExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --no-persistence-mode --verbose
"""
DEBIAN_UNIT = UBUNTU_UNIT.replace(" --no-persistence-mode", "").replace("StopWhenUnneeded=true\n", "")
FRAGMENT = "/usr/lib/systemd/system/nvidia-persistenced.service"

ON = {
    "host_cpu_governor": "performance", "host_persistence": True, "host_time_sync": True, "host_memlock": True,
    "host_nofile": 65536, "host_journal_max": "8G", "host_held_packages": ["^nvidia-"], "host_uvm_hmm": "off",
    "host_sysctls": {"vm.swappiness": "10"},
}  # fmt: skip
FILES = {
    "/etc/sysctl.d/60-inference.conf": "vm.swappiness = 10\n",
    units.LIMITS: "[Manager]\nDefaultLimitMEMLOCK=infinity\nDefaultLimitNOFILE=65536\n",
    units.JOURNAL: "[Journal]\nSystemMaxUse=8G\n",
    units.SESSIONS: "* - memlock unlimited\n",
    system.HELD_FILE: "Unattended-Upgrade::Package-Blacklist {};\n",
    modules.FILE: "options nvidia_uvm uvm_disable_hmm=1\n",
    f"{units.SYSTEM}/inference-cpu-governor.service": "[Service]\nExecStart=/bin/true\n",
}
OFF = dict.fromkeys(FILES, "")


class Systemd:
    """Acts as systemctl: units that are loaded, active and enabled; limits as in the file that was read last."""

    def __init__(self, host: Host, *there: str) -> None:
        self.host, self.active, self.enabled = host, {units.JOURNALD}, set[str]()
        self.there = {units.JOURNALD, *there}
        self.since = 0
        self.limits = {"DefaultLimitMEMLOCK": "8388608", "DefaultLimitNOFILE": "524288"}
        host.programs["systemctl"] = self.answer

    def answer(self, argv: Sequence[str]) -> Answer:
        verb, *words = argv[1:]
        if verb == "show" and "DefaultLimitMEMLOCK" in words[0]:
            return Answer(0, "".join(f"{n}={v}\n" for n, v in self.limits.items()))
        if verb == "show":
            return Answer(0, "\n".join(self.shown(name) for name in words[2:]))
        getattr(self, verb.replace("-", "_"))(*words)
        return Answer(0, "")

    def shown(self, name: str) -> str:
        here = name in self.there or self.host.path(f"{units.SYSTEM}/{name}").exists()
        facts = {
            "Id": name, "LoadState": "loaded" if here else "not-found",
            "ActiveState": "active" if name in self.active else "inactive",
            "UnitFileState": "enabled" if name in self.enabled else "disabled",
            "FragmentPath": FRAGMENT if name == units.PERSISTENCED else "", "ActiveEnterTimestamp": f"@{self.since}",
        }  # fmt: skip
        return "".join(f"{key}={value}\n" for key, value in facts.items())

    def daemon_reload(self) -> None:
        pass

    def daemon_reexec(self) -> None:
        text = self.host.read(units.LIMITS) or ""
        self.limits = {"DefaultLimitMEMLOCK": "8388608", "DefaultLimitNOFILE": "524288"}
        self.limits |= dict(line.split("=") for line in text.splitlines() if line.startswith("Default"))

    def enable(self, name: str) -> None:
        self.enabled.add(name)

    def start(self, name: str) -> None:
        self.active.add(name)

    def restart(self, name: str) -> None:
        self.active.add(name)
        if name == units.JOURNALD:
            self.since = int(self.host.path(units.JOURNAL).stat().st_mtime) + 1 if self.host.read(units.JOURNAL) else 0
        if name == "inference-cpu-governor.service":
            at_boot.apply("cpu-governor", "performance", self.host)

    def disable(self, _now: str, name: str) -> None:
        self.enabled.discard(name)
        self.active.discard(name)
        at_boot.revert("cpu-governor", self.host)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    machine = Host(tmp_path, {
        "/proc/sys/vm/swappiness": "60\n", "/proc/sys/fs/nr_open": "1048576\n", "/proc/cmdline": "root=/dev/sda1",
        f"{at_boot.CPUS}/cpu0/cpufreq/scaling_governor": "schedutil\n", modules.UVM: "Y\n", FRAGMENT: UBUNTU_UNIT,
    })  # fmt: skip
    for folder in (*{str(Path(path).parent) for path in FILES}, "/etc/systemd/system"):
        machine.path(folder).mkdir(parents=True, exist_ok=True)
    Systemd(machine, units.PERSISTENCED, units.TIMESYNCD)
    return machine


@pytest.fixture(autouse=True)
def _as_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid():
        pytest.skip("files are owned by root")


def again(host: Host) -> Host:
    """Look with fresh eyes: nothing that was asked before is remembered."""
    host.answers.clear()
    return host


def run(settings: dict[str, object], files: dict[str, str], host: Host) -> preparation.Plan:
    planned = preparation.plan(settings, files, again(host))
    preparation.apply(planned)
    return planned


def states(settings: dict[str, object], host: Host) -> dict[str, str]:
    return {outcome.setting: outcome.state for outcome in preparation.look(settings, again(host))}


def test_everything_comes_into_effect_and_a_second_run_has_nothing_to_do(host: Host):
    assert set(states(ON, host).values()) <= {"to do", "in effect", "pending"}
    planned = run(ON, FILES, host)
    assert planned.changed
    assert set(states(ON, host).values()) == {"in effect"}
    assert states(ON, host).keys() == ON.keys()
    second = preparation.plan(ON, FILES, again(host))
    assert (second.changed, second.diff()) == (False, [])


def test_planning_changes_nothing_and_shows_everything(host: Host):
    before = {path: path.read_bytes() for path in host.root.rglob("*") if path.is_file()}
    diff = str(preparation.plan(ON, FILES, host).diff())
    assert {path: path.read_bytes() for path in host.root.rglob("*") if path.is_file()} == before
    assert not [call for call in host.calls if not call.startswith(("systemctl show", "dpkg-query"))]
    for word in ("vm.swappiness = 60", "schedutil", "DefaultLimitNOFILE=65536", "start nvidia-persistenced"):
        assert word in diff


def test_switched_off_everything_is_as_it_was(host: Host):
    theirs = "/etc/sysctl.d/99-theirs.conf"
    host.write(theirs, "vm.swappiness = 5\n")
    run(ON, FILES, host)
    run({}, OFF, host)
    left = [str(path) for path in host.root.rglob("etc/**/*inference*") if path.is_file()]
    assert left == []
    assert host.read(theirs) == "vm.swappiness = 5"
    assert host.read(f"{at_boot.CPUS}/cpu0/cpufreq/scaling_governor") == "schedutil"
    assert states({}, host) == {}
    assert not preparation.plan({}, OFF, again(host)).changed


@pytest.mark.parametrize("setting", sorted(ON))
def test_each_setting_can_be_left_out(host: Host, setting: str):
    alone = {name: value for name, value in ON.items() if name != setting}
    off = {"host_cpu_governor": f"{units.SYSTEM}/inference-cpu-governor.service", "host_journal_max": units.JOURNAL,
           "host_held_packages": system.HELD_FILE, "host_uvm_hmm": modules.FILE}  # fmt: skip
    files = {path: "" if path == off.get(setting) else text for path, text in FILES.items()}
    if setting == "host_nofile":
        files[units.LIMITS] = "[Manager]\nDefaultLimitMEMLOCK=infinity\n"
    if setting == "host_memlock":
        files[units.LIMITS] = "[Manager]\nDefaultLimitNOFILE=65536\n"
    run(alone, files, host)
    assert states(alone, host) == dict.fromkeys(alone, "in effect")


def test_a_file_that_was_changed_by_hand_stops_everything(host: Host):
    run(ON, FILES, host)
    host.write(units.JOURNAL, (host.read(units.JOURNAL) or "") + "\nRateLimitBurst=0\n")
    host.write("/proc/sys/vm/swappiness", "60")
    with pytest.raises(HostError, match=r"journald\.conf\.d/60-inference\.conf \(changed by hand\)"):
        preparation.plan(ON, FILES, again(host))
    assert host.read("/proc/sys/vm/swappiness") == "60"
    run({**ON, "host_overwrite": True}, FILES, host)
    assert "RateLimitBurst" not in (host.read(units.JOURNAL) or "")


def test_what_was_changed_while_running_is_healed(host: Host):
    run(ON, FILES, host)
    host.write(f"{at_boot.CPUS}/cpu0/cpufreq/scaling_governor", "powersave")
    assert states(ON, host)["host_cpu_governor"] == "to do"
    run(ON, FILES, host)
    assert states(ON, host)["host_cpu_governor"] == "in effect"


def test_a_run_that_was_killed_before_journald_restarted_is_finished(host: Host):
    run(ON, FILES, host)
    stamp = host.path(units.JOURNAL).stat().st_mtime + 100
    os.utime(host.path(units.JOURNAL), (stamp, stamp))
    assert [s.what for s in preparation.plan(ON, FILES, again(host)).then] == [f"restart {units.JOURNALD}"]


def test_the_persistence_daemon_of_ubuntu_gets_its_mode_and_debians_is_left_as_it_is(host: Host):
    run(ON, FILES, host)
    drop_in = host.read(units.PERSISTENCED_DROP_IN) or ""
    assert (
        "ExecStart=\nExecStart=/usr/bin/nvidia-persistenced --user nvidia-persistenced --verbose --persistence-mode"
        in drop_in
    )
    assert "StopWhenUnneeded=no" in drop_in
    assert "Wants=nvidia-persistenced.service" in (host.read(units.WANTS) or "")
    host.write(FRAGMENT, DEBIAN_UNIT)
    run(ON, FILES, host)
    assert not host.path(units.PERSISTENCED_DROP_IN).exists()


def test_what_is_not_installed_is_named_with_its_package(host: Host):
    Systemd(host)
    outcomes = {o.setting: o for o in preparation.look(ON, again(host))}
    assert outcomes["host_persistence"].state == outcomes["host_time_sync"].state == "not done"
    assert "apt-get install nvidia-persistenced" in outcomes["host_persistence"].why
    assert "apt-get install systemd-timesyncd" in outcomes["host_time_sync"].why
    run(ON, FILES, host)
    assert not host.path(units.WANTS).exists()


def test_another_time_daemon_is_left_to_keep_the_clock(host: Host):
    systemd = Systemd(host, units.TIMESYNCD, "chrony.service", units.PERSISTENCED)
    systemd.active.add("chrony.service")
    run(ON, FILES, host)
    assert units.TIMESYNCD not in (host.read(units.WANTS) or "")
    assert [o.what for o in preparation.look(ON, again(host)) if o.setting == "host_time_sync"] == [
        "the clock is kept by chrony.service"
    ]


def test_in_a_container_nothing_that_is_the_kernels_is_written_or_called_done(
    host: Host, monkeypatch: pytest.MonkeyPatch
):
    host.contained = True
    monkeypatch.setattr(os, "access", lambda *_: False)
    run(ON, FILES, host)
    foreign = {"host_cpu_governor", "host_persistence", "host_time_sync", "host_uvm_hmm", "host_sysctls"}
    assert {name for name, state in states(ON, host).items() if state == "not done"} == foreign
    for path in (modules.FILE, units.SESSIONS, units.WANTS, f"{units.SYSTEM}/inference-cpu-governor.service"):
        assert not host.path(path).exists()
    assert not preparation.plan(ON, FILES, again(host)).changed


def test_more_open_files_than_the_kernel_allows_are_refused(host: Host):
    with pytest.raises(HostError, match=r"host_nofile: seen 2000000, expected at most fs\.nr_open=1048576"):
        preparation.plan({**ON, "host_nofile": 2000000}, FILES, host)


def test_a_template_that_renders_to_nothing_arrives_as_null(host: Host):
    assert not preparation.plan({}, dict.fromkeys(FILES), host).changed


def test_reasons_for_a_reboot_are_those_of_settings_and_of_the_topology_stage(host: Host):
    host.write(modules.UVM, "N\n")
    run(ON, FILES, host)
    topology = [
        {"id": "driver-mismatch", "seen": "580.95 and 580.105", "repaired_by": "host_reboot"},
        {"id": "persistence", "seen": "GPU 0", "repaired_by": "host_persistence"},
        {"id": "p2p-read", "seen": "x"},
    ]
    report = preparation.report(ON, again(host), topology)
    assert report["reboot"] == [
        "host_uvm_hmm: uvm_disable_hmm=1 for nvidia_uvm",
        "driver-mismatch: 580.95 and 580.105",
    ]
    assert report["not_done"] == []


def test_a_login_says_that_a_reboot_is_due_until_it_is_not(host: Host):
    preparation.notice(host, ["host_iommu: iommu=pt"])
    preparation.notice(host, ["host_iommu: iommu=pt"])
    assert (host.read(preparation.NOTICE) or "").splitlines()[1] == "  host_iommu: iommu=pt"
    preparation.notice(host, [])
    assert not host.path(preparation.NOTICE).exists()


def test_packages_that_are_missing_are_reported(host: Host):
    host.programs["dpkg-query"] = Answer(0, "installed gcc 12\n")
    report = preparation.report({"host_all_packages": ["gcc", "ninja-build"]}, again(host), [])
    assert report["missing_packages"] == ["ninja-build"]


def test_a_step_that_fails_says_which_program_and_why(host: Host):
    host.programs["systemctl restart"] = Answer(1, "", "Job for inference-cpu-governor.service failed")
    with pytest.raises(HostError, match=r"systemctl restart .* failed \(exit 1\): Job for"):
        run(ON, FILES, host)


def test_every_file_that_is_written_tells_whose_it_is(host: Host):
    run(ON, FILES, host)
    for path in FILES:
        assert owned.state_of(host.path(path)) == "ours"
