# SPDX-License-Identifier: Apache-2.0
"""The kernel command line: a real grub.cfg, altered as grub-mkconfig would, and what must not come into effect."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import pytest
from host_machine import Host

from inference.host import boot, owned
from inference.host.machine import HostError
from inference.topology.collect import Answer

REAL = (Path(__file__).parent / "fixtures/boot/grub-debian12.cfg").read_text()
KERNEL = "6.1.0-57-amd64"
ON = {"host_iommu": "pt", "host_pcie_aspm": "off"}
WORDS = "iommu=pt pcie_aspm=off pcie_port_pm=off"
DROP_IN = owned.sealed(f'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT {WORDS}"\n')


class GrubHost(Host):
    """Has GRUB: ``grub-mkconfig`` adds what the drop-in says to the normal entries, as the real one does."""

    def __init__(self, root: Path, running: str = "") -> None:
        super().__init__(root, {
            boot.CONFIGURATION: REAL, "/etc/default/grub": "GRUB_CMDLINE_LINUX_DEFAULT=quiet\n",
            "/proc/cmdline": f"BOOT_IMAGE=/boot/vmlinuz-{KERNEL} root=/dev/sda1 ro quiet {running}",
            f"/boot/vmlinuz-{KERNEL}": "", f"/boot/initrd.img-{KERNEL}": "",
        })  # fmt: skip
        self.template = REAL
        self.programs["grub-mkconfig"] = self._mkconfig

    def _mkconfig(self, argv: Sequence[str]) -> Answer:
        said = re.search(r"_DEFAULT (.*)\"", self.read(boot.DROP_IN) or "")
        self.write(argv[-1], self.template.replace("ro  quiet", f"ro  quiet {said[1]}" if said else "ro  quiet"))
        return Answer(0, "")


@pytest.fixture
def host(tmp_path: Path) -> GrubHost:
    return GrubHost(tmp_path)


def states(settings: dict[str, str], host: Host) -> list[tuple[str, str]]:
    return [(outcome.setting, outcome.state) for outcome in boot.look(settings, host)]


def test_normal_entries_are_told_from_recovery_and_from_other_systems():
    other = REAL.replace(
        "### END /etc/grub.d/30_os-prober ###",
        "  linux /boot/other root=/dev/sdb1\n### END /etc/grub.d/30_os-prober ###",
    )
    for text in (REAL, other):
        assert boot.command_lines(text) == [(f"/boot/vmlinuz-{KERNEL}", "root=/dev/sda1 ro  quiet")] * 2


def test_on_then_rebooted_then_off(host: GrubHost, tmp_path: Path):
    assert states(ON, host) == [("host_iommu", "to do"), ("host_pcie_aspm", "to do")]
    (step,) = boot.steps(ON, host, DROP_IN)
    assert WORDS in step.after
    step.act()
    assert host.calls[-1] == f"grub-script-check {boot.CANDIDATE}"
    assert states(ON, host) == [("host_iommu", "pending"), ("host_pcie_aspm", "pending")]
    assert all(outcome.reboot for outcome in boot.look(ON, host))
    assert not list(boot.steps(ON, host, DROP_IN))
    assert "single iommu" not in (host.read(boot.CONFIGURATION) or "")

    host.__dict__["parameters"] = {"iommu": "pt", "pcie_aspm": "off", "pcie_port_pm": "off"}
    assert states(ON, host) == [("host_iommu", "in effect"), ("host_pcie_aspm", "in effect")]

    (step,) = boot.steps({}, host, None)
    step.act()
    assert host.path(boot.CONFIGURATION).read_text() == REAL
    assert not host.path(boot.DROP_IN).exists()
    assert not host.path(boot.CANDIDATE).exists()
    assert {state for _, state in states({}, host)} == {"pending"}  # they still run
    assert not list(boot.steps({}, host, None))


def test_nothing_is_made_where_nothing_is_wanted_and_nothing_was(host: GrubHost):
    assert not list(boot.steps({}, host, None))
    assert not list(boot.look({}, host))


def test_a_run_that_was_killed_before_the_configuration_was_made_is_finished(host: GrubHost):
    next(boot.steps(ON, host, DROP_IN)).act()
    host.path(boot.DROP_IN).unlink()
    assert [step.what for step in boot.steps({}, host, None)] == ["make the boot configuration"]


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda host: host.programs.update({"grub-script-check": Answer(1, "", "syntax error")}), "syntax error"),
        (lambda host: host.programs.update({"grub-mkconfig": Answer(1, "", "no /boot")}), r"grub-mkconfig .*no /boot"),
        (lambda host: setattr(host, "template", "# nothing\n"), "no entry that boots Linux"),
        (lambda host: setattr(host, "template", REAL.replace("ro  quiet", "ro")), "iommu: seen none, expected pt"),
        (lambda host: setattr(host, "template", REAL.replace("ro  quiet", "iommu=soft ro  quiet")),
         "iommu: seen soft, pt, expected pt alone"),
        (lambda host: host.path(f"/boot/initrd.img-{KERNEL}").unlink(), rf"initrd\.img-{KERNEL} is not there"),
        (lambda host: setattr(host, "template", REAL.replace(KERNEL, "6.1.0-58")), "vmlinuz-6.1.0-58 is not there"),
    ],
)  # fmt: skip
def test_a_configuration_that_is_wrong_never_comes_into_effect(host: GrubHost, spoil: object, said: str):
    spoil(host)  # type: ignore[operator]
    (step,) = boot.steps(ON, host, DROP_IN)
    with pytest.raises(HostError, match=said):
        step.act()
    assert host.path(boot.CONFIGURATION).read_text() == REAL
    assert not host.path(boot.DROP_IN).exists()
    assert not host.path(boot.CANDIDATE).exists()


def test_an_entry_that_is_lost_is_noticed(host: GrubHost):
    host.write("/boot/vmlinuz-6.1.0-58-amd64", "")
    host.write("/boot/initrd.img-6.1.0-58-amd64", "")
    host.template = REAL.replace(KERNEL, "6.1.0-58-amd64")
    with pytest.raises(HostError, match=f"no entry for /boot/vmlinuz-{KERNEL} any more"):
        next(boot.steps(ON, host, DROP_IN)).act()


def test_a_drop_in_that_was_there_is_put_back(host: GrubHost):
    next(boot.steps(ON, host, DROP_IN)).act()
    before = host.path(boot.DROP_IN).read_bytes()
    host.programs["grub-script-check"] = Answer(1, "", "bad")
    with pytest.raises(HostError, match="bad"):
        next(boot.steps({"host_iommu": "off"}, host, DROP_IN.replace("pt", "off"))).act()
    assert host.path(boot.DROP_IN).read_bytes() == before


def test_a_boot_partition_of_its_own_has_paths_without_boot(tmp_path: Path):
    host = GrubHost(tmp_path)
    host.template = REAL.replace("\t/boot/", "\t/")
    host.write(boot.CONFIGURATION, host.template)
    next(boot.steps(ON, host, DROP_IN)).act()
    assert [state for _, state in states(ON, host)] == ["pending", "pending"]


def test_a_container_and_another_boot_loader_are_not_done(host: GrubHost, tmp_path: Path):
    host.contained = True
    assert {state for _, state in states(ON, host)} == {"not done"}
    assert not list(boot.steps(ON, host, DROP_IN))
    bare = Host(tmp_path / "bare", {"/proc/cmdline": "root=/dev/sda1 iommu=pt"})
    outcomes = list(boot.look(ON, bare))
    assert [o.state for o in outcomes] == ["in effect", "not done"]
    assert "add it in your boot loader's own configuration" in outcomes[1].why


def cpus(vendor: str, highest: int) -> str:
    return "".join(f"processor : {i}\nvendor_id\t: {vendor}\napicid\t\t: {i}\n\n" for i in (0, highest))


@pytest.mark.parametrize(
    ("vendor", "highest", "value", "refused"),
    [
        ("AuthenticAMD", 383, "off", True),
        ("AuthenticAMD", 383, "pt", False),
        ("AuthenticAMD", 254, "off", False),
        ("GenuineIntel", 383, "off", False),
    ],
)
def test_switching_the_iommu_off_is_refused_where_it_would_cost_cpus(
    tmp_path: Path, vendor: str, highest: int, value: str, refused: bool
):
    host = Host(tmp_path, {"/proc/cpuinfo": cpus(vendor, highest), "/proc/cmdline": "root=/dev/sda1"})
    problem = boot.refusal({"host_iommu": value}, host)
    assert bool(problem) is refused
    assert problem is None or "fix: host_iommu: pt" in problem


def test_where_it_runs_already_it_is_not_refused(tmp_path: Path):
    host = Host(tmp_path, {"/proc/cpuinfo": cpus("AuthenticAMD", 383), "/proc/cmdline": "root=/dev/sda1 iommu=off"})
    assert boot.refusal({"host_iommu": "off"}, host) is None
