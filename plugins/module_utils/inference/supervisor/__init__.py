# SPDX-License-Identifier: Apache-2.0
"""A unit's main process: starts an engine, tells systemd the truth about it, and ends it without leaving a process.

The main thread waits for signals, the ends of processes and time; it never asks the network. One thread passes the
engine's output on (supervisor_log), one asks the engine (supervisor_probe); both leave word here and wake the main one.
"""

from __future__ import annotations

import errno
import select
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from itertools import islice

from .. import signatures
from . import proc
from . import settings as settings_file
from .engine import Engine, LostWorker, describe_exit, was_asked
from .failure import Failure, explain, stalled
from .http import Server
from .inbox import Inbox
from .log import LogPump, Redactor
from .notify import Notifier
from .probe import Begun, Crashed, Event, Probed, Prober, Ready, Refused
from .record import Record
from .settings import Settings, SettingsError
from .voice import Voice
from .watch import Liveness, Look, StartWatch

USAGE = "usage: supervisor --settings FILE -- COMMAND [ARGUMENT ...]"

TICK_S = 1.0
"""Seconds between two looks at an engine that starts or drains."""

IDLE_TICK_S = 5.0
"""The longest time between two pings of the watchdog."""

START_STOP_S = 10.0
"""Seconds that an engine which serves nobody yet may take to end."""

KILL_S = 10.0
"""Seconds in which killed processes have to vanish; one that waits inside a driver may not."""

KNOWN_BETTER = frozenset({"serving", "draining", "stopping"})
"""Phases of which the supervisor itself decides, whatever the engine's log says."""


class Supervisor:
    """One run of one engine, from its start to the end of its last process."""

    def __init__(self, settings: Settings, voice: Voice, inbox: Inbox[Event], engine: Engine, key: str | None) -> None:
        self._settings, self._voice, self._inbox, self._engine = settings, voice, inbox, engine
        self._record = voice.record
        self._pump = LogPump(
            *(engine.output, 1, voice.redactor),
            on_phase=lambda phase: inbox.put(Begun(phase)),
            on_crash=lambda error: inbox.put(Crashed.of("reader of the log", error)),
        )
        self._prober = Prober(settings, Server(settings.host, settings.port, key), Engine.tree, inbox.put)
        self._poll = select.poll()
        self._poll.register(inbox.fd, select.POLLIN)
        self._poll.register(engine.pidfd, select.POLLIN)
        self._start: StartWatch | None = StartWatch(settings.stall_s, settings.start_grace_s, self._look())
        self._liveness = Liveness(settings.failed_probes, settings.probe_timeout_s, time.monotonic())
        self._heard_at = time.monotonic()
        self._kill_at: float | None = None
        self._dying_since: float | None = None
        self._kills_before = proc.oom_kills() or 0
        self._serving_status = ""

    def run(self) -> int:
        """Serve until asked to stop (returns 0) or until something fails (returns 1, and says what)."""
        self._pump.start()
        self._prober.start()
        try:
            while not self._step():
                pass
        except Failure as failure:
            return self._fail(failure)
        except Exception as error:
            return self._fail(Failure("supervisor-failed", f"{type(error).__name__}: {error}"))
        return self._finish()

    # ---- the loop

    def _step(self) -> bool:
        """Wait for something to happen and deal with it. True when the engine has ended as it was asked to."""
        self._poll.poll(self._tick_s() * 1000)
        self._inbox.clear()
        # What has ended comes before signals (systemd stops a unit in which the kernel killed for want of memory, and
        # both may be here at once), so those that come while this looks wait for the next step; and it comes before it
        # is collected, with its exit status.
        signals = self._inbox.waiting_signals
        if self._engine.exit_code is not None:
            return self._engine_ended(self._engine.exit_code)
        if lost := self._engine.lost_worker([handle for handle, _ in self._poll.poll(0)]):
            return self._worker_lost(lost)
        proc.reap(keep=self._engine.watched)
        if signals and self._is_dying():
            return False
        self._take_signals(signals)
        if self._kill_at is not None:
            return self._drain(self._kill_at)
        for event in self._inbox.events():
            self._take_event(event)
        if self._start:
            self._look_at_start(self._start)
        else:
            self._ping()
        return False

    def _is_dying(self) -> bool:
        """Whether the end of what died before a stop was asked for is yet to be seen; no longer than it may take."""
        if self._kill_at is not None or not any(map(proc.dying, self._engine.watched)):
            return False
        self._dying_since = self._dying_since or time.monotonic()
        return time.monotonic() - self._dying_since < KILL_S

    def _tick_s(self) -> float:
        most = TICK_S if self._start or self._kill_at else IDLE_TICK_S
        return min(most, self._voice.watchdog_s / 4) if self._voice.watchdog_s else most

    def _engine_ended(self, code: int) -> bool:
        if self._kill_at is None and not self._late_stop(was_asked(code)):
            raise self._killed_or("engine-ended", f"the engine {describe_exit(code)} while {self._record.phase}")
        return True

    def _worker_lost(self, worker: LostWorker) -> bool:
        self._voice.say(f"lost a worker: {worker}", level=3)
        if not self._late_stop(was_asked(-worker.signal if worker.signal else None)):
            raise self._killed_or("worker-died", f"a process of the engine ended: {worker}")
        return False

    def _killed_or(self, cause: str, event: str) -> Failure:
        """Return the failure: want of memory where the kernel has killed for it in this unit, else ``cause``."""
        if not (kills := self._kills()):
            return Failure(cause, event)
        row = signatures.signature("host-out-of-memory")
        return Failure(row.id, f"{event}; the kernel killed {kills} of this unit for want of memory", row.fix)

    def _kills(self) -> int:
        return max(0, (proc.oom_kills() or 0) - self._kills_before)

    def _late_stop(self, may_be: bool) -> bool:
        """Give the log time to say why, and tell whether the end was asked for by a signal that was still on its way.

        The whole unit may have been signalled, with the engine quicker to obey; but what ended by a crash or by the
        kernel's out-of-memory killer (after which systemd stops the unit) did not end because somebody asked.
        """
        self._pump.settle(quiet_s=0.2, at_most_s=1.0)
        for event in self._inbox.events():
            if isinstance(event, Begun):  # which phase it ended in; nothing else counts any more
                self._take_event(event)
        if may_be:
            self._take_signals()
        return self._kill_at is not None

    def _take_event(self, event: Event) -> None:
        if isinstance(event, Begun):
            if self._start and event.phase not in KNOWN_BETTER and event.phase != self._record.phase:
                self._voice.say(f"{event.phase}, {self._record.seconds:.1f} s after the start")
                self._record.enter(event.phase)
        elif isinstance(event, Ready):
            self._become_ready(event)
        elif isinstance(event, Probed):
            self._take_probe(event)
        elif isinstance(event, Refused):
            raise Failure(event.cause, event.what)
        else:
            raise Failure("supervisor-failed", f"the {event.thread} failed: {event.error}")

    # ---- starting

    def _look(self) -> Look:
        return Look(time.monotonic(), proc.work(Engine.tree()), self._pump.progress_bytes, self._record.phase)

    def _look_at_start(self, start: StartWatch) -> None:
        if time.monotonic() - start.looked_at < TICK_S:  # CPU time is counted in steps too coarse for less
            return
        look = self._look()
        progress = start.look(look)
        if seen := start.stalled(look.at):
            raise stalled(self._record.phase, seen)
        self._voice.starting(self._settings, extend=progress)

    def _become_ready(self, event: Ready) -> None:
        self._start = None
        self._heard_at = time.monotonic()
        self._liveness.succeeded(self._heard_at)
        workers = self._engine.watch_workers(self._poll)
        self._serving_status = f"serving; ready after {self._record.seconds:.0f} s"
        self._voice.tell(READY=1, WATCHDOG=1, status=self._serving_status)
        self._voice.say(
            f"ready after {self._record.seconds:.1f} s: generated {event.generation.tokens} tokens;"
            f" watching {len(workers)} workers"
        )
        self._pump.begin_serving()
        self._record.ready()
        proc.give_back_memory()

    # ---- serving

    def _take_probe(self, probe: Probed) -> None:
        self._heard_at = now = time.monotonic()
        if probe.why is None:
            if self._liveness.failed:
                self._voice.say(f"answers again after {self._liveness.failed} failed probes")
                self._voice.tell(status=self._serving_status)
            self._liveness.succeeded(now)
            return
        frozen = self._liveness.failed_probe(now, probe.counters, self._pump.last_batch)
        failed = self._liveness.failed
        self._voice.say(f"failed probe {failed} of {self._settings.failed_probes}: {probe.why}", level=4)
        if frozen:
            raise Failure(
                "engine-hung", f"{failed} probes in a row failed and no request advances; the last: {probe.why}"
            )
        self._voice.tell(status=f"serving; {failed} failed probes in a row")

    def _ping(self) -> None:
        """Ping the watchdog for as long as the prober reports: a ping that nothing stands behind proves nothing."""
        if time.monotonic() - self._heard_at <= self._settings.freeze_bound_s:
            self._voice.tell(WATCHDOG=1)

    # ---- stopping

    def _take_signals(self, at_most: int | None = None) -> None:
        for number in islice(self._inbox.signals(), at_most):
            if number == signal.SIGABRT:
                raise Failure("supervisor-aborted", "SIGABRT received")
            if number == signal.SIGHUP and self._voice.heard:
                self._voice.say("SIGHUP ignored: new settings are read at a restart", level=5)
            elif self._kill_at is None:
                self._stop(signal.Signals(number).name)
            elif number == signal.SIGINT:  # a second Ctrl-C
                self._kill_at = time.monotonic()

    def _stop(self, why: str) -> None:
        patience = min(self._settings.drain_s, START_STOP_S) if self._start else self._settings.drain_s
        self._voice.say(f"{why}: asking the engine to end, within {patience:.0f} s")
        if kills := self._kills():
            self._voice.say(f"the kernel killed {kills} of this unit for want of memory since the start", level=4)
        self._kill_at = time.monotonic() + patience
        self._prober.end()
        self._engine.forget_workers(self._poll)
        self._engine.signal(signal.SIGTERM)
        self._record.enter("draining")
        self._voice.tell(STOPPING=1, WATCHDOG=1, status="draining")

    def _drain(self, kill_at: float) -> bool:
        """Wait for the engine to end; True when it can't even be killed."""
        self._voice.tell(WATCHDOG=1, status=f"draining, {self._record.phase_seconds:.0f} s")
        if time.monotonic() < kill_at:
            return False
        self._voice.say(f"the engine has not ended within {self._record.phase_seconds:.0f} s: killing it", level=4)
        return bool(proc.end_descendants(KILL_S, keep=self._engine.watched))

    # ---- the end

    def _finish(self) -> int:
        code = self._engine.exit_code
        self._sweep()
        how = "is still there" if code is None else describe_exit(code)
        self._voice.say(f"stopped in {self._record.phase_seconds:.1f} s; the engine {how}")
        self._record.enter("stopped")
        self._voice.tell(status="stopped")
        return 0

    def _fail(self, failure: Failure) -> int:
        self._voice.say(failure.event, level=3)
        if failure.cause == "engine-hung":
            self._voice.tell(WATCHDOG="trigger", status=f"frozen: {failure.event}")
        code = self._engine.exit_code
        self._sweep()
        told = explain(failure, self._pump.matches)
        return self._voice.failed(failure, told, exit_code=code, log=self._pump.lines)

    def _sweep(self) -> None:
        """End whatever is left of the engine's tree, and take in the last of its output."""
        for entry in proc.end_descendants(KILL_S):
            self._voice.say(f"process {entry.pid} (state {entry.state}) cannot be killed", level=3)
        self._pump.finish(2)


def prepare(settings: Settings, environ: Mapping[str, str], voice: Voice) -> str | None:
    """Check everything that can be known before anything is started. Return the API key."""
    try:
        voice.record.open()
    except OSError as error:
        raise Failure("runtime-dir-missing", f"{settings.runtime_dir}: {error.strerror}") from error
    try:
        key = settings_file.read_key(settings.api_key_file, environ)
    except SettingsError as error:
        raise Failure("settings-invalid", str(error)) from error
    voice.redactor = Redactor(key)
    bound, period = settings.freeze_bound_s, voice.watchdog_s
    if period and bound > period + 5:
        voice.say(f"a frozen engine is noticed after up to {bound:.0f} s, but WatchdogSec is {period:.0f} s", level=4)
    _check_port(settings.host, settings.port)
    return key


def _check_port(host: str, port: int) -> None:
    error = proc.bind_error(host, port)
    if error is None:
        return
    if error.errno != errno.EADDRINUSE:
        raise Failure("address-unusable", f"cannot listen on {host}:{port}: {error.strerror}")
    others = proc.listeners(host, port)
    who = proc.describe_holder(others[0]) if others else "a socket that does not listen"
    raise Failure("port-in-use", f"port {port} is held by {who}")


def supervise(settings: Settings, command: Sequence[str], environ: dict[str, str], notifier: Notifier) -> int:
    """Start the engine and serve. Return the exit code."""
    voice, inbox = Voice(Record(settings, command, environ), notifier, environ), Inbox[Event]()
    inbox.catch_signals()
    try:
        key = prepare(settings, environ, voice)
        voice.starting(settings, extend=True)
        if not proc.become_subreaper():
            voice.say("not a subreaper: workers that leave the engine's process tree are not seen", level=4)
        engine = Engine(command, environ)
    except Failure as failure:
        return voice.failed(failure, explain(failure, []), exit_code=None, log=[])
    voice.record.started(engine.pid)
    try:
        return Supervisor(settings, voice, inbox, engine, key).run()
    finally:
        proc.end_descendants(KILL_S)  # nothing is left, unless the supervisor itself has failed


def main(arguments: Sequence[str], environ: dict[str, str]) -> int:
    """Run the program: ``--settings FILE -- COMMAND [ARGUMENT ...]``. Returns the exit code, 0 or 1."""
    if arguments[:1] in (["-h"], ["--help"]):
        sys.stdout.write(f"{USAGE}\n")
        return 0
    notifier = Notifier(environ)
    try:
        path, command = _parse(arguments)
        settings = settings_file.load(path)
    except SettingsError as error:
        notifier.send(status=f"failed (settings-invalid): {error}")
        sys.stderr.write(f"supervisor: {error}\n")
        return 1
    return supervise(settings, command, environ, notifier)


def _parse(arguments: Sequence[str]) -> tuple[str, list[str]]:
    """Return the settings file and the command."""
    if arguments[:1] != ["--settings"] or arguments[2:3] != ["--"] or len(arguments) < 4:  # noqa: PLR2004
        raise SettingsError(f"cannot understand the arguments\n{USAGE}")
    return arguments[1], list(arguments[3:])
