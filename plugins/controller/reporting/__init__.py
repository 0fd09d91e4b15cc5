# SPDX-License-Identifier: Apache-2.0
"""Pictures, plots and pages from what the runs wrote. Runs on the controller alone, under its virtual environment."""
