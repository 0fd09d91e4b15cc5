# SPDX-License-Identifier: Apache-2.0
"""NCCL: profiles and what they cost, the judgement of settings, the communication budget, NCCL's own log."""

from .profiles import (
    CUSTOM_ALL_REDUCE_OFF,
    DEFAULT_PROFILE,
    MEASURED_PROFILE,
    NAME_PATTERN,
    NO_SETTINGS,
    PROFILES,
    Evidence,
    Measured,
    NcclError,
    Profile,
    environment,
    p2p_is_off,
    profile,
    required_arguments,
)

__all__ = [
    "CUSTOM_ALL_REDUCE_OFF",
    "DEFAULT_PROFILE",
    "MEASURED_PROFILE",
    "NAME_PATTERN",
    "NO_SETTINGS",
    "PROFILES",
    "Evidence",
    "Measured",
    "NcclError",
    "Profile",
    "environment",
    "p2p_is_off",
    "profile",
    "required_arguments",
]
