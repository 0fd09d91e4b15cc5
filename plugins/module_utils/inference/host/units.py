# SPDX-License-Identifier: Apache-2.0
"""Settings that are systemd's: units at boot, the NVIDIA persistence daemon, a time daemon, limits, the journal."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property

from . import at_boot
from .machine import BUILD_TIMEOUT, CannotActError, Machine
from .outcome import Outcome, Settings, Step

SYSTEM = "/etc/systemd/system"
LIMITS = "/etc/systemd/system.conf.d/60-inference.conf"
SESSIONS = "/etc/security/limits.d/60-inference.conf"
JOURNAL = "/etc/systemd/journald.conf.d/60-inference.conf"
WANTS = f"{SYSTEM}/multi-user.target.d/60-inference.conf"
PERSISTENCED = "nvidia-persistenced.service"
PERSISTENCED_DROP_IN = f"{SYSTEM}/{PERSISTENCED}.d/60-inference.conf"
JOURNALD = "systemd-journald.service"
TIMESYNCD = "systemd-timesyncd.service"
TIME_DAEMONS = (TIMESYNCD, *(f"{n}.service" for n in ("chrony", "chronyd", "ntpsec", "ntp", "ntpd", "openntpd")))

_SHOWN = "Id,LoadState,ActiveState,UnitFileState,FragmentPath,ActiveEnterTimestamp"


@dataclass
class Services:
    """What systemd says, asked once."""

    machine: Machine

    @cached_property
    def units(self) -> dict[str, dict[str, str]]:
        """Properties of every unit that matters here, by name; empty where there is no systemd."""
        names = [*map(unit_of, at_boot.KINDS), PERSISTENCED, JOURNALD, *TIME_DAEMONS]
        text = self.machine.ask("systemctl", "show", f"--property={_SHOWN}", "--timestamp=unix", *names).out
        blocks = (dict(line.partition("=")[::2] for line in block.splitlines()) for block in text.split("\n\n"))
        return dict(zip(names, blocks, strict=False))

    @cached_property
    def defaults(self) -> dict[str, str]:
        """The limits that systemd gives to services which set none."""
        shown = self.machine.ask("systemctl", "show", "--property=DefaultLimitMEMLOCK,DefaultLimitNOFILE")
        return dict(line.partition("=")[::2] for line in shown.out.splitlines())

    def has(self, name: str) -> bool:
        """Whether there is such a unit."""
        return self.units.get(name, {}).get("LoadState") == "loaded"

    def active(self, name: str) -> bool:
        """Whether the unit runs."""
        return self.units.get(name, {}).get("ActiveState") == "active"

    def since(self, name: str) -> float:
        """When the unit was started, in seconds since 1970; 0 if it never was."""
        stamp = self.units.get(name, {}).get("ActiveEnterTimestamp", "").lstrip("@")
        return float(stamp) if stamp.isdecimal() else 0.0


def unit_of(name: str) -> str:
    """Return the unit of a setting that is made at every boot."""
    return f"inference-{name}.service"


# ---------------------------------------------------------------- what is made at every boot


def impossible(settings: Settings, machine: Machine) -> dict[str, str]:
    """Return which of the enabled settings that are made at boot have nothing to act on here, and why."""
    reasons = {}
    for name, value in at_boot.values(settings).items():
        try:
            at_boot.look(name, value, machine)
        except CannotActError as error:
            reasons[name] = str(error)
    return reasons


def look_at_boot(settings: Settings, machine: Machine, services: Services) -> Iterator[Outcome]:
    """Say how the settings that units make at boot stand."""
    reasons = impossible(settings, machine)
    for name, value in at_boot.values(settings).items():
        kind = at_boot.KINDS[name]
        if name in reasons:
            yield Outcome(kind.setting, "not done", kind.what, reasons[name])
            continue
        differing, target = at_boot.look(name, value, machine)
        seen = ", ".join(f"{point} {now}" for point, now in list(differing.items())[:4])
        if differing:
            yield Outcome(kind.setting, "to do", f"{kind.what} {target}", f"it is {seen}")
        elif not _stands(services, unit_of(name)):
            yield Outcome(kind.setting, "to do", f"{kind.what} {target}", "not at the next boot")
        else:
            yield Outcome(kind.setting, "in effect", f"{kind.what} {target}")


def _stands(services: Services, unit: str) -> bool:
    return services.active(unit) and services.units[unit].get("UnitFileState") == "enabled"


def stop_steps(settings: Settings, machine: Machine, services: Services) -> Iterator[Step]:
    """Return what has to happen before unit files go: stopping a unit puts back what it changed."""
    kept = at_boot.values(settings).keys() - impossible(settings, machine).keys()
    for name, kind in at_boot.KINDS.items():
        unit = unit_of(name)
        if name not in kept and services.has(unit) and machine.path(f"{SYSTEM}/{unit}").exists():
            yield Step(kind.setting, f"stop and disable {unit}", _command(machine, "disable", "--now", unit))


def start_steps(settings: Settings, machine: Machine, services: Services, changed: set[str]) -> Iterator[Step]:
    """Return what starts the units of enabled settings whose file is new or whose points are not as wanted."""
    reasons = impossible(settings, machine)
    for name, value in at_boot.values(settings).items():
        if name in reasons:
            continue
        unit, kind = unit_of(name), at_boot.KINDS[name]
        differing, target = at_boot.look(name, value, machine)
        if differing or f"{SYSTEM}/{unit}" in changed or not _stands(services, unit):
            before = "".join(f"{kind.what} {point} {now}\n" for point, now in differing.items())
            after = "".join(f"{kind.what} {point} {target}\n" for point in differing)
            yield Step(kind.setting, f"enable {unit}", _command(machine, "enable", unit))
            yield Step(kind.setting, f"restart {unit}", _command(machine, "restart", unit), before, after)


def _command(machine: Machine, *words: str) -> Callable[[], None]:
    def act() -> None:
        machine.must(["systemctl", *words], BUILD_TIMEOUT)

    return act


# ---------------------------------------------------------------- daemons


def host_files(settings: Settings, machine: Machine, services: Services) -> dict[str, str]:
    """Return the files whose content depends on what the host has: which daemons are to run, and how."""
    wants = []
    if settings.get("host_persistence") and not machine.contained and services.has(PERSISTENCED):
        wants.append(PERSISTENCED)
    if settings.get("host_time_sync") and not machine.contained and not _other_time_daemon(services):
        wants += [TIMESYNCD] if services.has(TIMESYNCD) else []
    drop_in = _persistenced(machine, services) if PERSISTENCED in wants else ""
    content = "".join(f"Wants={name}\n" for name in wants)
    return {WANTS: f"[Unit]\n{content}" if wants else "", PERSISTENCED_DROP_IN: drop_in}


def _persistenced(machine: Machine, services: Services) -> str:
    """Return a drop-in where the distribution starts the daemon without persistence mode, as Ubuntu does."""
    text = machine.read(services.units[PERSISTENCED].get("FragmentPath") or "") or ""
    command = re.search(r"^ExecStart=(.*--no-persistence-mode.*)$", text, re.M)
    lines = ["[Unit]", "StopWhenUnneeded=no"] if re.search(r"^StopWhenUnneeded=(?:yes|true|1|on)", text, re.M) else []
    if command:
        words = [word for word in command[1].split() if word != "--no-persistence-mode"]
        lines += ["[Service]", "ExecStart=", f"ExecStart={' '.join([*words, '--persistence-mode'])}"]
    return "\n".join(lines) + "\n" if lines else ""


def _other_time_daemon(services: Services) -> bool:
    return any(services.active(name) for name in TIME_DAEMONS if name != TIMESYNCD)


def look_daemons(settings: Settings, machine: Machine, services: Services) -> Iterator[Outcome]:
    """Say whether the persistence daemon and a time daemon run."""
    if settings.get("host_persistence"):
        what = "the persistence daemon"
        if machine.contained:
            yield Outcome("host_persistence", "not done", what, "a container: the driver belongs to the machine below")
        elif not services.has(PERSISTENCED):
            yield Outcome(
                "host_persistence", "not done", what,
                "there is no nvidia-persistenced.service; install it: apt-get install nvidia-persistenced (NVIDIA's"
                " repository, Debian) or nvidia-compute-utils-BRANCH-server (Ubuntu)",
            )  # fmt: skip
        else:
            yield Outcome("host_persistence", "in effect" if services.active(PERSISTENCED) else "to do", what)
    if settings.get("host_time_sync"):
        yield _look_time(machine, services)


def _look_time(machine: Machine, services: Services) -> Outcome:
    running = [name for name in TIME_DAEMONS if services.active(name)]
    what = f"the clock is kept by {running[0]}" if running else "a daemon that keeps the clock"
    if running:
        return Outcome("host_time_sync", "in effect", what)
    if machine.contained:
        return Outcome("host_time_sync", "not done", what, "a container: the clock belongs to the machine below")
    if services.has(TIMESYNCD):
        return Outcome("host_time_sync", "to do", what)
    why = "none is installed; install one: apt-get install systemd-timesyncd"
    return Outcome("host_time_sync", "not done", what, why)


def daemon_steps(settings: Settings, machine: Machine, services: Services, changed: set[str]) -> Iterator[Step]:
    """Return what starts the daemons that are to run, and restarts one whose drop-in changed."""
    wanted = host_files(settings, machine, services)
    for setting, name in (("host_persistence", PERSISTENCED), ("host_time_sync", TIMESYNCD)):
        if f"Wants={name}\n" in wanted[WANTS] and not services.active(name):
            yield Step(setting, f"start {name}", _command(machine, "start", name))
        elif name == PERSISTENCED and PERSISTENCED_DROP_IN in changed and services.active(name):
            yield Step(setting, f"restart {name}", _command(machine, "restart", name))


# ---------------------------------------------------------------- limits and the journal


def refusal(settings: Settings, machine: Machine) -> str | None:
    """Say why a limit would keep people from logging in, or None: pam_limits refuses a session that it cannot give."""
    most = machine.read("/proc/sys/fs/nr_open")
    wanted = settings.get("host_nofile") or 0
    if most is None or not most.isdecimal() or wanted <= int(most):
        return None
    return f"host_nofile: seen {wanted}, expected at most fs.nr_open={most}; raise that in host_sysctls in a run before"


def _wanted_defaults(settings: Settings) -> dict[str, tuple[str, str]]:
    """Return the setting and the value of each of systemd's default limits that is to be set."""
    wanted = {}
    if settings.get("host_memlock"):
        wanted["DefaultLimitMEMLOCK"] = ("host_memlock", "infinity")
    if settings.get("host_nofile"):
        wanted["DefaultLimitNOFILE"] = ("host_nofile", str(settings["host_nofile"]))
    return wanted


def look_limits(settings: Settings, machine: Machine, services: Services) -> Iterator[Outcome]:
    """Say whether systemd gives the wanted limits to services, and sessions get theirs."""
    for name, (setting, value) in _wanted_defaults(settings).items():
        right = services.defaults.get(name) == value and machine.path(LIMITS).is_file()
        why = "" if right else f"it is {services.defaults.get(name, 'not known')}"
        yield Outcome(setting, "in effect" if right else "to do", f"{name}={value} for services", why)


def limit_steps(settings: Settings, machine: Machine, services: Services, changed: set[str]) -> Iterator[Step]:
    """Return what has systemd read its limits anew: with a file that changed, or that a killed run left unread."""
    wanted = _wanted_defaults(settings)
    wrong = [setting for name, (setting, value) in wanted.items() if services.defaults.get(name) != value]
    if LIMITS in changed or wrong:
        before = "".join(f"{name}={services.defaults.get(name)}\n" for name in wanted)
        after = "".join(f"{name}={value}\n" for name, (_, value) in wanted.items())
        yield Step("host_memlock, host_nofile", "have systemd read its limits",
                   _command(machine, "daemon-reexec"), before, after)  # fmt: skip


def look_journal(settings: Settings, machine: Machine, services: Services) -> Iterator[Outcome]:
    """Say whether the journal's limits are those that journald was started with."""
    if settings.get("host_journal_max"):
        fresh = not journal_is_older(machine, services)
        what = f"the journal uses at most {settings['host_journal_max']}"
        yield Outcome("host_journal_max", "in effect" if fresh else "to do", what)


def journal_is_older(machine: Machine, services: Services) -> bool:
    """Whether journald was started before its drop-in was written, or there is none."""
    file = machine.path(JOURNAL)
    return not file.is_file() or services.since(JOURNALD) < int(file.stat().st_mtime)


def journal_steps(settings: Settings, machine: Machine, services: Services, changed: set[str]) -> Iterator[Step]:
    """Return what has journald read its limits: a restart, which loses no message."""
    wanted = bool(settings.get("host_journal_max"))
    if JOURNAL in changed or (wanted and journal_is_older(machine, services)):
        yield Step("host_journal_max", f"restart {JOURNALD}", _command(machine, "restart", JOURNALD))


def reload_step(machine: Machine, changed: set[str]) -> Iterator[Step]:
    """Return what has systemd read unit files that changed."""
    if any(path.startswith(SYSTEM + "/") for path in changed):
        yield Step("units", "have systemd read its units", _command(machine, "daemon-reload"))
