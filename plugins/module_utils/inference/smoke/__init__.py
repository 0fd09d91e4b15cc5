# SPDX-License-Identifier: Apache-2.0
"""What a smoke test can find, in one table, and the shape of its result."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..findings import Finding, Level, Report
from .stats import figure

JOURNAL = "read the engine's journal (journalctl -u <unit>); scripts/diagnose names known causes in it"
RESTART = f"restart the instance; if it comes back, {JOURNAL}"

CATALOGUE: dict[str, tuple[Level, str, str, str]] = {
    # reachable, health, identity
    "unreachable": ("critical", "nothing accepts connections at this address", "an open port",
                    "start the instance, and compare the address and port with its unit"),
    "unhealthy": ("critical", "the server says that it is not healthy", "200 from every health endpoint", JOURNAL),
    "health-hangs": ("critical", "a health endpoint accepts the request and does not answer",
                     "200 from every health endpoint within the timeout", RESTART),
    "health-disagreement": ("critical", "the health endpoints contradict each other",
                            "the same answer from every health endpoint",
                            "trust the worse one: a health endpoint that generates nothing may answer for a dead "
                            "engine; " + RESTART),
    "unauthorized": ("critical", "the server wants a key, or another one", "an answer",
                     "give the key's file with --api-key-file"),
    "not-openai": ("critical", "the server does not speak the OpenAI API", "a list of models from /v1/models",
                   "check the URL: another program may listen on this port"),
    "wrong-model": ("critical", "another model is served than the one that is meant", "the model that is meant",
                    "correct --model, the profile or the instance"),
    "wrong-engine": ("critical", "another engine answers than the one that is meant", "the engine that is meant",
                     "check the URL: another instance may listen on this port"),
    "wrong-release": ("critical", "another release runs than the one that is meant", "the release that is meant",
                      "restart the instance so that it runs the release on disk"),
    "wrong-backend": ("critical", "the engine runs with another setting than the one that is meant",
                      "the setting of the profile", "correct the instance's settings, or the profile"),
    # a request
    "no-answer": ("critical", "a completion was accepted and nothing came", "a first token within the timeout",
                  RESTART + "; a health endpoint may say 200 all the while"),
    "stalled": ("critical", "a stream stopped in the middle without ending", "the next token within the timeout",
                RESTART),
    "too-slow": ("critical", "a completion was not over in time", "a whole answer within the timeout",
                 "look for what shares the GPUs; else " + RESTART),
    "endless": ("critical", "an answer was far longer than was asked for", "no more than max_tokens", RESTART),
    "refused": ("critical", "a connection was refused in the middle of the test", "an open port", JOURNAL),
    "dropped": ("critical", "the connection broke before the answer was complete", "a whole answer", JOURNAL),
    "truncated": ("critical", "a stream just ended: no finish_reason, no [DONE], no error",
                  "finish_reason, usage and [DONE] at the end",
                  "an engine behind a router was lost in the middle: look at the router's backends; " + JOURNAL),
    "no-finish-reason": ("critical", "an answer has no finish_reason", "stop or length", JOURNAL),
    "no-done": ("critical", "a stream ended without [DONE]", "[DONE] as last event",
                "a proxy in between may cut streams: ask the engine itself"),
    "no-usage": ("critical", "an answer has no usage, so that its tokens cannot be counted",
                 "usage at the end (stream_options.include_usage)",
                 "a proxy in between may drop it: ask the engine itself"),
    "error-in-200": ("critical", "an error came with status 200", "a completion, or an error status", JOURNAL),
    "malformed": ("critical", "an event of a stream is not JSON", "one JSON object in each event",
                  "a proxy in between may cut streams: ask the engine itself"),
    "not-a-stream": ("critical", "a stream was asked for and something else came", "server-sent events",
                     "a proxy in between may collect streams: ask the engine itself"),
    "http-error": ("critical", "a completion failed", "200", JOURNAL),
    "wrong-answerer": ("critical", "an answer names another model than the one that was asked", "the model asked for",
                       "correct --model or the instance's served name"),
    # correctness
    "degenerate": ("critical", "the text is no answer: the engine computes something wrong",
                   "text that varies", "check weights, kernels and quantisation of this release on this GPU: run "
                   "`scripts/patches status`, and try another attention or GEMM backend"),
    "golden": ("critical", "a known question got a wrong answer", "the answer that every sound copy of the model gives",
               "check weights, chat template, kernels and quantisation: try another attention or GEMM backend"),
    "nan-logprobs": ("critical", "log probabilities are not numbers below zero", "finite log probabilities",
                     "the engine computes NaN: try another attention or GEMM backend"),
    "not-repeatable": ("critical", "the same greedy request was answered differently from its first words on",
                       "the same beginning each time", "check the interconnect (scripts/topology check) and kernels: "
                       "data may be corrupted under way"),
    "leak": ("critical", "an answer holds what only another request knew", "each answer from its own request",
             "do not serve with this: the engine mixes up its cache; try without prefix cache and overlap scheduling"),
    "cached": ("warning", "the server answered a prompt that nobody sent before from its cache", "no cached tokens",
               "look for what caches in between: figures measured so are worthless"),
    "slow-first-token": ("warning", "the first token of a short prompt takes long", "a quick first token on an idle "
                         "server", "measure without other load; a first run may still compile kernels"),
    # measurement, gate
    "several-tokens-in-a-chunk": ("info", "chunks hold several tokens: chunk gaps are not token gaps",
                                  "", ""),
    "reasoning-first": ("info", "the first token is reasoning: TTFT is the time to it", "", ""),
    "client-bound": ("unknown", "the figures say more about this client than about the server",
                     "a client that is far from its own limits", "run it from an idle machine"),
    "client-late": ("info", "times to first token say more about this client than about the server",
                    "a client on time", "run it from an idle machine; these times are not gated"),
    "floor-unknown": ("unknown", "a figure that has a floor could not be had", "a figure", "run it again"),
    "below-floor": ("critical", "a figure misses the floor of the profile", "the floor",
                    "look at what changed; the profile names whose figure the floor is"),
    "regression": ("critical", "a figure is worse than this host's own history allows", "the baseline within its noise",
                   "look at what changed since; if it is meant, start a new history"),
    "baseline-recorded": ("info", "first run of this kind on this host: it is the baseline", "", ""),
    "history-damaged": ("warning", "lines of the history cannot be read and were left out", "whole lines",
                        "a full disk or a killed run leaves such lines: remove them"),
    "stage-timeout": ("critical", "a stage was not over in time", "the stage within its timeout",
                      "raise the profile's timeouts.stages if the work is known to take longer; else " + RESTART),
    # afterwards
    "gpu-count": ("critical", "GPUs are missing after the load", "every GPU", "read the kernel log for Xid messages"),
    "xid": ("critical", "the driver reported errors of a GPU during the test", "no Xid",
            "scripts/diagnose explains the Xid"),
    "journal-signature": ("warning", "the unit logged what is known to mean trouble", "no such line", JOURNAL),
    "journal-errors": ("warning", "the unit logged errors since its start", "none", JOURNAL),
    "memory-growth": ("warning", "used memory grew all through the soak", "no lasting growth",
                      "soak for longer; if it goes on, restart the instance at intervals and report it"),
    "hot": ("warning", "a GPU became hot in the soak", "a cooler GPU", "look at airflow, fans and power limit"),
    "memory-low": ("warning", "the host is short of memory after the load", "at least 2% available",
                   "look for what grows"),
}  # fmt: skip
"""Level, what, expected, fix of every finding by its id."""


def finding(
    name: str,
    seen: str,
    *,
    expected: str | None = None,
    level: Level | None = None,
    where: str = "",
    fix: str | None = None,
) -> Finding:
    """Return the finding ``name`` of the catalogue; ``where`` says in which stage or request it was."""
    default, what, usual, usual_fix = CATALOGUE[name]
    said = f"{where}: {what}" if where else what
    return Finding(name, level or default, said, seen, expected or usual, fix or usual_fix)


PROBLEM_IDS = {"wrong-model": "wrong-answerer"}
"""Where a request's problem has another name among the findings."""


def problem_id(problem: str) -> str:
    """Return the finding's id for a request's problem; every HTTP status is one finding."""
    return "http-error" if problem.startswith("http-") else PROBLEM_IDS.get(problem, problem)


@dataclass
class Stage:
    """What became of one stage. ``status``: passed, failed (it has a critical finding), skipped."""

    name: str
    status: str = "skipped"
    seconds: float = 0.0
    note: str = ""


@dataclass
class Result:
    """Everything a run found. ``facts`` is who answered; ``throughput`` the figures by stage; ``gate`` the verdict."""

    report: Report = field(default_factory=Report)
    stages: list[Stage] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    throughput: dict[str, Any] = field(default_factory=dict)
    gate: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON object of the contract."""
        return self.report.as_dict(
            run=self.facts,
            stages=[vars(stage) for stage in self.stages],
            throughput=self.throughput,
            gate=self.gate,
        )

    def as_text(self) -> str:
        """Return the result for people: stages, figures, gate, findings."""
        blocks = [_table([(s.name, s.status, f"{s.seconds:.1f} s", s.note) for s in self.stages])]
        rows = [figure_row(name, figures) for name, figures in _shapes(self.throughput)]
        if rows:
            blocks.append(_table([FIGURE_HEAD, *rows]))
        gate = [_gate_row(row) for row in self.gate.get("rows", [])]
        if gate:
            blocks.append(_table([GATE_HEAD, *gate]))
        return "\n\n".join([*blocks, self.report.as_text()])


FIGURE_HEAD = ("shape", "tok/s", "a stream", "ttft p50", "p90", "p99", "tpot p50", "p99", "requests", "failed")
GATE_HEAD = ("metric", "value", "floor", "target", "baseline", "allowed", "verdict")


def _shapes(throughput: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    named = [(name, throughput[name]) for name in ("single", "concurrent") if throughput.get(name)]
    again = throughput.get("again") or {}
    named += [(f"{name}, again", row) for name, row in _shapes(again)] if again else []
    named += [(f"{row['concurrency']} streams", row) for row in throughput.get("sweep") or []]
    named += [(f"{row['rate']:g} a second", row) for row in throughput.get("open_loop") or []]
    return named + [(f"prefill {row['length']}", row) for row in throughput.get("prefill") or []]


def figure_row(name: str, row: dict[str, Any]) -> tuple[str, ...]:
    """Return the cells of one measured shape; times in milliseconds."""

    def milliseconds(figure: str, statistic: str) -> str:
        return f"{row[figure][statistic] * 1000:.0f} ms" if row.get(figure) else "-"

    def rate(figure: str) -> str:
        if not row.get(figure):
            return "-"
        cv = row[figure]["cv"]
        return f"{row[figure]['median']:.1f}" + (f" ±{cv:.0%}" if cv is not None else "")

    return (
        name, rate("tok_s"), rate("decode_tok_s"), *(milliseconds("ttft_s", p) for p in ("p50", "p90", "p99")),
        *(milliseconds("tpot_s", p) for p in ("p50", "p99")), str(row["requests"]), str(row["failed"]),
    )  # fmt: skip


def _gate_row(row: dict[str, Any]) -> tuple[str, ...]:
    def number(value: float | None) -> str:
        return "-" if value is None else figure(value)

    target = row.get("target")
    distance = f" ({target['better_by_percent']:+.0f}%)" if target and target["better_by_percent"] is not None else ""
    return (
        row["metric"],
        number(row["value"]),
        number(row["floor"]["value"]) if "floor" in row else "-",
        number(target["value"]) + distance if target else "-",
        number(row["baseline"]),
        number(row["allowed"]),
        ", ".join([*row["failures"], *(f"{name} (warning)" for name in row["warnings"])]) or "pass",
    )


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return "\n".join("  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)
