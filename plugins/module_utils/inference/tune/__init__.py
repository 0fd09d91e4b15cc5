# SPDX-License-Identifier: Apache-2.0
"""Choose NCCL settings by measuring them on the host itself."""
