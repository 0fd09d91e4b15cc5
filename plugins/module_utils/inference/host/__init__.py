# SPDX-License-Identifier: Apache-2.0
"""Settings of a host: which there are, what each does, and whether it is in effect.

``preparation`` compares and applies all of them; ``at_boot`` alone is what ``scripts/host`` needs at every boot.
"""
