# SPDX-License-Identifier: Apache-2.0
"""Runs rsync on the controller for the module of the same name, and shows how far it is."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

sys.path.append(str(Path(__file__).resolve().parent.parent / "module_utils"))

from inference import transfer
from inference.transfer import Ssh
from inference.weights.sources import SourceError, parse_source

EVERY_S = 10.0
"""Seconds between two lines of progress."""

STRANGERS = ("-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=accept-new")
"""How a host logs in to another one: it asks nobody, and learns the other's key once."""

display = Display()


class ActionModule(ActionBase):  # type: ignore[misc]  # ansible has no types here
    """One transfer."""

    _requires_connection = True

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Check the source, run rsync."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        if self._task.check_mode:
            return {**result, "skipped": True, "changed": False}
        try:
            command = self._command(task_vars or {})
            self._refuse_a_link(task_vars or {})
            self._refuse_a_password()
            done, output, said = self._follow(command)
            if done:
                raise AnsibleActionFail(f"{command[0]} ended with status {done}: {said.strip()[-600:]}")
        except AnsibleActionFail as error:
            return {**result, "failed": True, "msg": str(error)}
        return {**result, "changed": output.changes > 0, "changes": output.changes}

    def _command(self, task_vars: dict[str, Any]) -> list[str]:
        """Return the command; everything that can be checked is checked."""
        text, target = str(self._task.args["source"]), str(self._task.args["target"])
        try:
            source = parse_source(text)
        except SourceError as error:
            raise AnsibleActionFail(str(error)) from error
        host = self._host()
        if source.kind == "folder":
            folder = Path(source.path).expanduser()
            if not folder.is_dir():
                raise AnsibleActionFail(
                    f"seen no folder {folder} on the controller; expected one; fix: make or correct it"
                )
            if links := transfer.leading_out(folder):
                raise AnsibleActionFail(
                    f"seen links that lead out of {folder}: {', '.join(links[:5])} ({len(links)} in all); expected a "
                    f"folder that is whole by itself; fix: copy it with files in their place (cp -rL {folder} COPY)"
                )
            return transfer.push(str(folder), host, target)
        if source.kind == "hub" or host is None:
            raise AnsibleActionFail(f"seen {text}; expected a folder of the controller or of another host")
        return transfer.pull(self._peer(source.name, task_vars), source.path, host, target)

    def _refuse_a_link(self, task_vars: dict[str, Any]) -> None:
        """Whoever could make a link where the folder goes would choose what root overwrites."""
        target = str(self._task.args["target"])
        cheap = {"get_checksum": False, "get_mime": False, "get_attributes": False}
        found = self._execute_module("ansible.builtin.stat", {"path": target, **cheap}, task_vars=task_vars)
        if found.get("failed"):
            raise AnsibleActionFail(str(found.get("msg")))
        if found["stat"].get("islnk"):
            raise AnsibleActionFail(
                f"seen a link at {target}; expected a folder or nothing; fix: see where it leads, and remove it"
            )

    def _refuse_a_password(self) -> None:
        """Ansible can answer sudo's question, rsync's other end cannot."""
        host = self._host()
        if host is None or not host.become or host.user == "root":
            return
        done = subprocess.run(host.probe, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        if done.returncode:
            raise AnsibleActionFail(
                f"{shlex.join(host.probe)} ended with status {done.returncode}: {done.stderr.strip()[-300:]}; nothing "
                "was brought; expected: rsync can run as root there without a password; fix: log in as root, or allow "
                "it to the account that logs in (visudo -f /etc/sudoers.d/inference: USER ALL=(root) NOPASSWD: ALL)"
            )

    def _host(self) -> Ssh | None:
        """Return how this host is reached; None for this machine itself."""
        if self._connection.transport == "local":
            return None
        option = self._connection.get_option
        words = ["ssh", "-o", "BatchMode=yes"]
        for name in ("ssh_args", "ssh_common_args", "ssh_extra_args"):
            words += shlex.split(option(name) or "")
        words += ["-p", str(option("port"))] if option("port") else []
        words += ["-i", str(Path(option("private_key_file")).expanduser())] if option("private_key_file") else []
        return Ssh(str(option("host")), option("remote_user"), words, become=bool(self._connection.become))

    def _peer(self, name: str, task_vars: dict[str, Any]) -> Ssh:
        """Return how this host reaches another one of the inventory."""
        known = task_vars.get("hostvars", {})
        if name not in known:
            raise AnsibleActionFail(f"seen the source host {name}; expected a host of the inventory")
        if not os.environ.get("SSH_AUTH_SOCK"):
            raise AnsibleActionFail(
                f"a transfer from {name} needs an ssh agent; seen no SSH_AUTH_SOCK; fix: start one (eval $(ssh-agent); "
                f"ssh-add) with a key that {name} accepts"
            )
        peer = known[name]
        port = ("-p", str(peer["ansible_port"])) if peer.get("ansible_port") else ()
        user = peer.get("ansible_user")
        return Ssh(str(peer.get("ansible_host", name)), str(user) if user else None, ("ssh", *STRANGERS, *port))

    def _follow(self, command: list[str]) -> tuple[int, transfer.Output, str]:
        """Run the command and print its progress; return its exit status, what it changed, and its errors."""
        output, shown = transfer.Output(), time.monotonic()
        # errors go to a file: nobody reads them meanwhile, and a full pipe would stop rsync for ever
        with tempfile.TemporaryFile() as errors:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors)
            assert process.stdout is not None  # noqa: S101 - for the type checker
            while text := os.read(process.stdout.fileno(), 1 << 16):
                for progress in output.feed(text.decode(errors="replace")):
                    if time.monotonic() - shown >= EVERY_S:
                        shown = time.monotonic()
                        so_far = f"{progress.bytes / 1e9:.1f} GB, {progress.percent}%"
                        line = f"{so_far}, {progress.rate}, {progress.left} left"
                        display.display(f"  {self._task.args['target']}: {line}")
            done = process.wait()
            errors.seek(0)
            return done, output, errors.read().decode(errors="replace")
