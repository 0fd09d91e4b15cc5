# SPDX-License-Identifier: Apache-2.0
"""For every test: how long an example takes, or how slowly examples are made, is no failure on a busy machine."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("busy machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy machine")
