# SPDX-License-Identifier: Apache-2.0
"""The domain: what is known about inference hosts, engines and NCCL, as plain typed Python.

Standard library only, Python 3.10 and newer, no knowledge of Ansible. Modules, filters and the programs in
``scripts/`` are thin layers over it.
"""

__version__ = "0.1.0"
"""The toolkit's version."""
