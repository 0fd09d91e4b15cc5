# SPDX-License-Identifier: Apache-2.0
"""The rules that NCCL settings are judged by, as data: level, what the rule is about, and where it is written down.

``critical`` is what keeps NCCL from starting, makes it read something else than was written, or puts data at risk.
``warning`` is a setting that doesn't do what its author believes. ``info`` is harmless: no-ops, old names, classes.
Sections of the user guide are those of the page "Environment Variables"; "source" is NVIDIA/nccl at the tag named.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..findings import Finding, Level
from .variables import GUIDE


@dataclass(frozen=True)
class Rule:
    """One rule. ``level`` is the gravest that it reports; ``source`` is where it is written down."""

    id: str
    level: Level
    about: str
    source: str


_SYSTEMD = "systemd.exec(5), Environment"
_SOURCE = "NCCL 2.28.9 source"
_LOG = f"{GUIDE}: NCCL_DEBUG, NCCL_DEBUG_SUBSYS "

_RULES = (
    # how the text is read
    Rule("nccl-unreadable", "warning", "a line, a word or a text that sets nothing", _SYSTEMD),
    Rule("nccl-wrong-section", "warning", "a setting where systemd doesn't look for one", _SYSTEMD),
    Rule("nccl-inline-comment", "warning", "a comment behind a setting", "systemd.syntax(7)"),
    Rule("nccl-several-in-a-line", "info", "several settings in one line", "systemd.exec(5), EnvironmentFile"),
    Rule("nccl-specifier", "warning", "a percent sign that systemd replaces", "systemd.unit(5), Specifiers"),
    Rule("nccl-quotes-kept", "warning", "quotes that become part of the value", f"{_SOURCE}, src/misc/param.cc"),
    Rule(
        "nccl-white-space",
        "warning",
        "white space that becomes part of a name or value",
        f"{_SOURCE}, src/misc/param.cc",
    ),
    Rule("nccl-unexpanded", "warning", "a $ or ~ that nothing expands", f"{GUIDE}: NCCL_CONF_FILE, NCCL_DEBUG_FILE"),
    Rule("nccl-duplicate", "warning", "a setting that is made twice", _SYSTEMD),
    # names
    Rule("nccl-name-case", "warning", "a name that NCCL doesn't see for its case", "environ(7)"),
    Rule("nccl-unknown-name", "warning", "a name that no release reads", GUIDE),
    Rule("nccl-not-yet", "warning", "a setting that a later release introduced", GUIDE),
    Rule("nccl-gone", "warning", "a setting that this release no longer reads", GUIDE),
    Rule("nccl-old-name", "info", "a deprecated name", GUIDE),
    Rule("nccl-foreign-name", "info", "a name that something else than NCCL reads", GUIDE),
    Rule("nccl-debugging-class", "info", "settings of the guide's debugging class", f"{GUIDE}: Debugging"),
    Rule("nccl-undocumented", "info", "settings that the user guide doesn't describe", GUIDE),
    # values
    Rule("nccl-not-a-number", "critical", "text where NCCL reads a number", f"{_SOURCE}, src/misc/param.cc"),
    Rule("nccl-number-base", "warning", "a leading zero, which makes a number octal", f"{_SOURCE}, src/misc/param.cc"),
    Rule("nccl-out-of-range", "warning", "a number outside the legal range", GUIDE),
    Rule("nccl-illegal-value", "warning", "a value that NCCL doesn't know", GUIDE),
    Rule("nccl-value-case", "warning", "a value that NCCL doesn't know for its case", GUIDE),
    Rule("nccl-legacy-integer", "warning", "a distance given as a number", f"{GUIDE}: NCCL_P2P_LEVEL"),
    Rule("nccl-list-syntax", "critical", "a list of algorithms or protocols that can't be read", f"{GUIDE}: NCCL_ALGO"),
    Rule("nccl-empty-value", "critical", "a variable that is set to nothing", f"{_SOURCE}, src/misc/param.cc"),
    Rule("nccl-empty-graph-file", "critical", "an empty NCCL_GRAPH_FILE", f"{_SOURCE}, src/graph/search.cc"),
    Rule("nccl-no-op", "info", "a setting that repeats the default", GUIDE),
    Rule("nccl-not-power-of-two", "info", "a buffer size that isn't a power of two", f"{GUIDE}: NCCL_BUFFSIZE"),
    # settings together, and against the host and the engine
    Rule("nccl-ll128-across-sys", "critical", "LL128 forced across sockets", f"{GUIDE}: NCCL_PROTO"),
    Rule("nccl-ll128-forced", "warning", "LL128 forced where NCCL would not use it", f"{GUIDE}: NCCL_PROTO"),
    Rule("nccl-ll-for-all-sizes", "info", "LL alone, which costs bandwidth", f"{GUIDE}: NCCL_PROTO"),
    Rule("nccl-algorithm-gap", "critical", "a collective that is left without an algorithm", f"{GUIDE}: NCCL_ALGO"),
    Rule(
        "nccl-min-above-max", "warning", "a minimum above its maximum", f"{_SOURCE}, src/init.cc, src/graph/connect.cc"
    ),
    Rule(
        "nccl-two-names", "warning", "the old and the new name of one setting", f"{GUIDE}: NCCL_MAX_CTAS, NCCL_MIN_CTAS"
    ),
    Rule("nccl-p2p-contradiction", "warning", "peer access turned off and tuned", f"{_SOURCE}, src/graph/paths.cc"),
    Rule(
        "nccl-p2p-level-topology",
        "warning",
        "a peer-access level that this host has no pair for",
        f"{GUIDE}: NCCL_P2P_LEVEL",
    ),
    Rule("nccl-no-transport", "warning", "neither peer access nor shared memory", f"{GUIDE}: NCCL_SHM_DISABLE"),
    Rule(
        "nccl-custom-all-reduce",
        "warning",
        "peer access off for NCCL but not for the engine",
        "vllm-project/vllm#51513",
    ),
    Rule(
        "nccl-expandable-segments",
        "critical",
        "PyTorch's expandable segments with an all-reduce that shares memory handles",
        "local-inference-lab/rtx6kpro, inference-engines/sglang.md",
    ),
    Rule(
        "nccl-loopback-unit",
        "critical",
        "ranks that cannot meet in a unit that reaches loopback only",
        "systemd.resource-control(5), IPAddressDeny=",
    ),
    Rule("nccl-tuner-without-plugin", "warning", "a tuner's file without the tuner", f"{GUIDE}: NCCL_TUNER_PLUGIN"),
    Rule("nccl-debug-file-shared", "warning", "one log file for several processes", f"{GUIDE}: NCCL_DEBUG_FILE"),
    Rule("nccl-one-host", "info", "settings without effect inside one host", GUIDE),
    Rule("nccl-nvlink-only", "info", "settings without effect where there is no NVLink", f"{GUIDE}: NCCL_NVLS_ENABLE"),
    Rule("nccl-conf-file", "warning", "a configuration file that adds settings", f"{GUIDE}: NCCL_CONF_FILE"),
    Rule("nccl-conf-shadowed", "info", "a line of a configuration file that has no effect", f"{GUIDE}: NCCL_CONF_FILE"),
    Rule("nccl-version-beyond", "info", "a release newer than the table of variables", GUIDE),
    # what NCCL says about itself, against what was wanted
    Rule(
        "nccl-log-empty",
        "unknown",
        "a log that shows nothing of NCCL's start",
        f"{GUIDE}: NCCL_DEBUG, NCCL_DEBUG_SUBSYS",
    ),
    Rule("nccl-init-incomplete", "unknown", "a start that the log doesn't see to its end", _LOG + "INIT"),
    Rule("nccl-version-differs", "warning", "another release than the one that was meant", _LOG + "INIT"),
    Rule("nccl-not-engaged", "critical", "a wanted setting that NCCL didn't take", _LOG + "ENV"),
    Rule("nccl-extra-setting", "info", "a setting that someone else made", _LOG + "ENV"),
    Rule("nccl-transport", "warning", "another transport than the settings ask for", _LOG + "P2P, SHM, INIT"),
    Rule("nccl-bound-without-effect", "info", "a limit on channels that bounded nothing", _LOG + "INIT"),
    Rule("nccl-protocol", "warning", "another protocol or algorithm than the settings allow", _LOG + "TUNING"),
    Rule("nccl-log-warning", "warning", "a warning of NCCL's own", _LOG + "INIT"),
)

RULES: Mapping[str, Rule] = {rule.id: rule for rule in _RULES}
"""All rules by id."""


def report(  # one parameter a field of the finding
    rule_id: str,
    *,
    what: str,
    seen: str,
    expected: str,
    fix: str,
    level: Level | None = None,
    source: str | None = None,
) -> Finding:
    """Return the finding of a rule; ``expected`` is followed by the source, the rule's own unless one is given.

    NCCL's guide is cited with its release also where the rule is somebody else's, such as systemd's.
    """
    rule = RULES[rule_id]
    cited = source or rule.source
    if not cited.startswith("NCCL"):
        cited = f"{cited}; {GUIDE}"
    return Finding(rule_id, level or rule.level, what, seen, f"{expected} [{cited}]", fix)
