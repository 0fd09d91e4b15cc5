# SPDX-License-Identifier: Apache-2.0
"""Choose NCCL settings by measuring them on the host itself, at the sizes that a model sends.

``shapes`` tells what a model sends; ``candidates`` what is tried; ``measuring`` and ``launching`` run groups of worker
processes within bounds; ``outcome`` judges each; ``campaign`` runs them all; ``decision`` chooses, from figures alone;
``receipt`` writes the document that the profile ``measured`` reads, and says when it has expired; ``record`` is the
whole result of a run.

Whole engines: ``trials`` what is tried, ``engines`` runs one, ``comparison`` judges the figures, ``ab`` runs them all.
``options`` is the command line of scripts/tune.
"""

from __future__ import annotations

from .budget import Line, lines, reason
from .campaign import Campaign, Plan, results, run, run_pairs
from .candidates import BASELINE, Candidate, CandidateError, base_of, quick, thorough, unique
from .decision import Decision, DecisionError, Result, Row, Workload, decide, goal, in_doubt, read_results
from .launching import ENDING, Limits
from .measuring import Bench, WorkerError, versions
from .outcome import BANNED, Outcome, judge
from .receipt import Host, ban, document, expired, host_of, profile_of, validate
from .record import Record, RecordError
from .report import findings, plan_text, text
from .shapes import QUICK_TOKENS, THOROUGH_TOKENS, Shape, ShapeError, Size, shape_of, sizes

__all__ = [
    "BANNED",
    "BASELINE",
    "ENDING",
    "QUICK_TOKENS",
    "THOROUGH_TOKENS",
    "Bench",
    "Campaign",
    "Candidate",
    "CandidateError",
    "Decision",
    "DecisionError",
    "Host",
    "Limits",
    "Line",
    "Outcome",
    "Plan",
    "Record",
    "RecordError",
    "Result",
    "Row",
    "Shape",
    "ShapeError",
    "Size",
    "WorkerError",
    "Workload",
    "ban",
    "base_of",
    "decide",
    "document",
    "expired",
    "findings",
    "goal",
    "host_of",
    "in_doubt",
    "judge",
    "lines",
    "plan_text",
    "profile_of",
    "quick",
    "read_results",
    "reason",
    "results",
    "run",
    "run_pairs",
    "shape_of",
    "sizes",
    "text",
    "thorough",
    "unique",
    "validate",
    "versions",
]
