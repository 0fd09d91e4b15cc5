# SPDX-License-Identifier: Apache-2.0
"""Every environment variable that NCCL reads: since which release, of which class and kind, with which default.

The table was drawn up from NVIDIA/nccl itself: releases and defaults from the source of each of its release tags from
2.3.5 to 2.30.7 (the calls that read the environment), class and legal values from the user guide's page "Environment
Variables" in the source tree of 2.30.7 (``docs/userguide/source/env.rst``; the first release that ships the guide).
``since`` is therefore the first tag that reads the variable, which can be some patches later than the guide says.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Version = tuple[int, int, int]
"""A release of NCCL. A missing patch number is read as the last patch of that minor release."""

VariableClass = Literal["system", "debugging", "undocumented"]
"""The guide's two sections, or not in the guide. ``debugging``: for experiments, neither production nor to be kept."""

Scope = Literal["any", "network", "nvlink"]
"""Where a variable has an effect: ``network`` between hosts only, ``nvlink`` where there are NVLink or NVSwitch."""

NEWEST: Version = (2, 30, 7)
"""The newest release that the table knows."""

GUIDE = "NCCL user guide 2.30.7, Environment Variables"
_LAST_PATCH = 999


class VersionError(ValueError):
    """A text that names no NCCL release."""


def parse_version(text: str) -> Version:
    """Return the release that ``text`` names: ``2.28.9``, ``v2.28.9-1``, ``2.28.9+cuda13.0``, ``2.28`` or ``22809``."""
    match = re.fullmatch(r"v?(\d{1,2})\.(\d{1,3})(?:\.(\d{1,3}))?(?:[-+][\w.+-]*|\.[a-z][\w.]*)?", text.strip())
    if match:
        major, minor, patch = match.groups()
        return int(major), int(minor), _LAST_PATCH if patch is None else int(patch)
    code = re.fullmatch(r"2(\d\d)(\d\d)", text.strip())
    if code:  # NCCL_VERSION_CODE, as ncclGetVersion returns it
        return 2, int(code[1]), int(code[2])
    raise VersionError(f"{text!r} is no NCCL release; expected one such as 2.28.9 or 2.28.9+cuda13")


def same_release(one: str, other: str) -> bool:
    """Say whether two texts name the same release; texts that name none have to be equal."""
    try:
        return parse_version(one) == parse_version(other)
    except VersionError:
        return one == other


def version_text(version: Version) -> str:
    """Return a release as NCCL writes it, such as ``2.28.9``, or ``2.17`` for a minor release as a whole."""
    major, minor, patch = version
    return f"{major}.{minor}" if patch in (0, _LAST_PATCH) else f"{major}.{minor}.{patch}"


@dataclass(frozen=True)
class Variable:
    """One variable. ``kinds`` and ``defaults`` are lists of (first release, text), oldest first; see ``kind``."""

    name: str
    since: Version
    until: Version | None
    """The last release that reads it, or None while the newest does."""
    variable_class: VariableClass
    scope: Scope
    kinds: tuple[tuple[Version, str], ...]
    defaults: tuple[tuple[Version, str], ...]

    def kind(self, version: Version) -> str:
        """Return the kind of its value in that release: a word and, where it has any, the legal values.

        ``int LOW..HIGH`` (either end may be missing), ``one A B`` (integers), ``bytes``, ``bool``, ``word A B`` and
        ``exactly A B`` (one of, in any case and in this case), ``words SET`` (a list, see ``WORDS``), ``level A B`` (a
        distance), ``list algorithm``, ``list protocol``, ``policy``, ``netdevs``, ``path``, ``text``, ``free``.
        """
        return _at(self.kinds, version)

    def default(self, version: Version) -> str:
        """Return the value that the release uses when it is unset, or an empty string where NCCL decides itself."""
        return _at(self.defaults, version)

    def known_in(self, version: Version) -> bool:
        """Return whether that release reads the variable."""
        return self.since <= version and (self.until is None or version <= self.until)

    @property
    def reference(self) -> str:
        """Return where its rule is written down."""
        if self.variable_class == "undocumented":
            last = version_text(self.until or NEWEST)
            return f"NCCL source, {version_text(self.since)} to {last}; not in the user guide"
        return f"{GUIDE}: {self.name}"


def _at(entries: tuple[tuple[Version, str], ...], version: Version) -> str:
    valid = [text for since, text in entries if since <= version]
    return valid[-1] if valid else entries[0][1]


WORDS: Mapping[str, tuple[str, ...]] = {
    "subsystems": (
        *("INIT", "COLL", "P2P", "SHM", "NET", "GRAPH", "TUNING", "ENV", "ALLOC", "ALLOC_HOST", "CALL", "PROXY"),
        *("NVLS", "BOOTSTRAP", "REG", "PROFILE", "RAS", "DESTROY", "ALL"),
    ),
    "levels": ("VERSION", "WARN", "INFO", "ABORT", "TRACE", "ALL"),
}
"""The words that a list of kind ``words`` is made of; NCCL ignores any other."""

PROTOCOLS = ("LL", "LL128", "Simple")

ALGORITHMS: Mapping[str, tuple[Version, Version | None]] = {
    "Ring": ((2, 5, 0), None),
    "Tree": ((2, 5, 0), None),
    "Collnet": ((2, 5, 0), (2, 13, _LAST_PATCH)),
    "CollnetChain": ((2, 14, 0), None),
    "CollnetDirect": ((2, 14, 0), None),
    "NVLS": ((2, 17, 0), None),
    "NVLSTree": ((2, 18, 0), None),
    "PAT": ((2, 23, 0), None),
}
"""Algorithms with the first and last release that know them (user guide, NCCL_ALGO)."""

FUNCTIONS = ("Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce")
"""The collectives that a list of algorithms or protocols can name since 2.24 (NCCL source, ``ncclFuncStr``)."""

PER_FUNCTION: Version = (2, 24, 0)
"""Since this release lists can differ by function, an unknown word is an error, and nothing falls back to Ring."""

LEVELS = ("LOC", "NVL", "PIX", "PXB", "PHB", "SYS")
"""The guide's distances, nearest first."""

LEGACY_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS")
"""What the integers 0 to 4 mean where a distance is expected; NVL has none (user guide, NCCL_P2P_LEVEL)."""

UNDOCUMENTED_LEVELS = ("NVB", "C2C", "P2C", "PXN")
"""Further distances that the source compares with (``topoPathTypeStr`` in 2.28.9)."""

SUCCESSORS: Mapping[str, tuple[Version, str]] = {
    "NCCL_MAX_NCHANNELS": ((2, 17, 0), "NCCL_MAX_CTAS"),
    "NCCL_MIN_NCHANNELS": ((2, 17, 0), "NCCL_MIN_CTAS"),
    "NCCL_MAX_NRINGS": ((2, 5, 0), "NCCL_MAX_CTAS"),
    "NCCL_MIN_NRINGS": ((2, 5, 0), "NCCL_MIN_CTAS"),
    "NCCL_CHECKS_DISABLE": ((2, 2, 12), "NCCL_CHECK_POINTERS"),
    "NCCL_CHECK_POINTERS": ((2, 29, 7), "NCCL_CHECK_MODE=DEBUG_LOCAL"),
    "NCCL_IB_GDR_LEVEL": ((2, 4, 0), "NCCL_NET_GDR_LEVEL"),
    "NCCL_IB_CUDA_SUPPORT": ((2, 4, 0), "NCCL_NET_GDR_LEVEL"),
    "NCCL_MNNVL": ((2, 21, 0), "NCCL_MNNVL_ENABLE"),
}
"""Old names: since which release they are deprecated, renamed or gone, and what replaces them (user guide)."""

PYTORCH_NAMES = frozenset(
    f"NCCL_{name}"
    for name in (
        *(
            "ASYNC_ERROR_HANDLING",
            "BLOCKING_WAIT",
            "DESYNC_DEBUG",
            "ENABLE_TIMING",
            "DUMP_ON_TIMEOUT",
            "ENABLE_MONITORING",
        ),
        *("HEARTBEAT_TIMEOUT_SEC", "TRACE_BUFFER_SIZE", "AVOID_RECORD_STREAMS", "USE_COMM_NONBLOCKING"),
    )
)
"""PyTorch's own switches by their old names; its current releases call them TORCH_NCCL_... (ProcessGroupNCCL)."""

BUILD_NAMES = frozenset(
    f"NCCL_{name}"
    for name in (
        *("HOME", "ROOT", "ROOT_DIR", "DIR", "PATH", "LIB_DIR", "LIBRARY", "LIBRARIES", "INCLUDE_DIR", "INCLUDE_DIRS"),
        *("VERSION", "SO_PATH", "TESTS_HOME"),
    )
)
"""Names that builds and container images use; NCCL reads none of them."""

PLUGIN_PREFIXES = (
    *(
        "NCCL_TUNER_CONFIG",
        "NCCL_PROFILE_",
        "NCCL_PROFILER_",
        "NCCL_INSPECTOR_",
        "NCCL_IBEXT_",
        "NCCL_SHARP_",
        "NCCL_UCX_",
    ),
    *("NCCL_FASTRAK_", "NCCL_GPUDIRECTTCPX_", "NCCL_GCP_", "NCCL_OFI_", "NCCL_PLUGIN_", "NCCL_SHIMNET_"),
)
"""Beginnings of the names that plugins read (tuner, profiler and network plugins, NCCL's examples among them)."""

# name (without NCCL_) | since | last | class (system, debugging, undocumented) | scope (any, network, v = nvlink)
# | kind[;kind@since] | default[;default@since]
_TABLE = """
AGG_ALLOC_MODE|2.10.3|2.12.12|u|a|text|
AGG_CHANNEL_SIZE|2.10.3|2.19.4|u|a|int|
ALGO|2.5.6||d|a|list algorithm|
ALLGATHERV_ENABLE|2.29.2||u|a|int|1
ALLOC_P2P_NET_LL_BUFFERS|2.14.3||d|n|int 0..1|0
BUFFSIZE|2.3.5||d|a|bytes|4194304
CGA_CLUSTER_SIZE|2.15.1||d|a|int 0..8|
CHECKS_DISABLE|2.0.5|2.2.13|d|a|int 0..1|0
CHECK_MODE|2.29.7||d|a|word DEFAULT DEBUG_LOCAL DEBUG_GLOBAL|DEFAULT
CHECK_POINTERS|2.3.5||d|a|int 0..1|0
CHUNK_SIZE|2.12.7||u|a|int|0
COLLNET_ENABLE|2.6.4||s|n|int 0..1|0
COLLNET_NODE_THRESHOLD|2.9.9||s|n|int|2
COMM_BLOCKING|2.14.3||d|a|int 0..1|
COMM_ID|2.3.5||u|a|text|
COMM_SHRINK_SHARE_RESOURCES|2.27.3||u|a|int|
COMM_SPLIT_SHARE_RESOURCES|2.18.1||u|a|int|
CONF_FILE|2.23.4||s|a|path|
CONNECT_ROUND_MAX_PEERS|2.19.4||u|a|int|128
CREATE_THREAD_CONTEXT|2.13.4|2.30.4|u|a|int|0
CROSS_NIC|2.5.6||s|n|int 0..2|2
CTA_POLICY|2.27.3||s|a|int 0..2;policy@2.29.2|0;DEFAULT@2.29.2
CUDA_PATH|2.13.4|2.20.5|u|a|path|
CUMEM_ENABLE|2.18.1||d|a|int 0..1|0;@2.19.1
CUMEM_HOST_ENABLE|2.23.4||d|a|int 0..1|0;@2.24.3
DEBUG|2.3.5||s|a|word VERSION WARN INFO ABORT TRACE|
DEBUG_FILE|2.3.5||s|a|path|
DEBUG_SUBSYS|2.3.5||s|a|words subsystems|
DEBUG_TIMESTAMP_FORMAT|2.26.2||s|a|free|
DEBUG_TIMESTAMP_LEVELS|2.26.2||s|a|words levels|
DEV_API_JIT|2.30.7||u|n|int|0
DISABLE_MEM_MANAGER|2.29.7||u|a|int|0
DMABUF_ENABLE|2.13.4||d|n|int 0..1|1
ELASTIC_BUFFER_REGISTER|2.30.3||u|a|int|1
ENABLE_VERSION_CHECK|2.29.2||u|a|int|1
ENV_PLUGIN|2.28.7||s|a|text|
GDAKI_USE_RELIABLE_DB|2.29.7||u|n|int|0
GDRCOPY_ENABLE|2.9.6||u|n|int|0
GDRCOPY_FIFO_ENABLE|2.9.6||u|n|int|1
GDRCOPY_FLUSH_ENABLE|2.9.6||u|n|int|0
GDRCOPY_SYNC_ENABLE|2.12.7||u|n|int|1
GDRCOPY_TAIL_ENABLE|2.9.6|2.11.4|u|n|int|1
GDR_FLUSH_DISABLE|2.3.5||u|n|int|0
GIN_COUNTER_POOL_SIZE|2.28.7|2.29.7|u|n|int|65536;524288@2.29.7
GIN_ENABLE|2.28.7||u|n|int|1
GIN_ERROR_QUERY_SEC|2.28.7||u|n|int|10
GIN_EXCLUSIVE_CONTEXTS|2.29.7|2.29.7|u|n|int|
GIN_GDAKI_MAX_DEST_RD_ATOMIC|2.30.3||u|n|int|
GIN_GDAKI_MAX_QP_RD_ATOMIC|2.30.3||u|n|int|
GIN_GDAKI_NIC_HANDLER|2.28.7||u|n|int|0
GIN_GDAKI_QP_DEPTH|2.28.7||u|n|int|128
GIN_IB_TC|2.30.7||u|n|int|
GIN_NCONNECTIONS|2.29.7||u|n|int|
GIN_NCONTEXTS|2.28.7|2.29.7|u|n|int|
GIN_PLUGIN|2.29.7||u|n|text|
GIN_PLUGIN_REF_COUNT|2.29.7||u|n|int|0
GIN_PROXY_QUEUE_SIZE|2.28.7||u|n|int|
GIN_SIGNAL_POOL_SIZE|2.28.7|2.29.7|u|n|int|65536;524288@2.29.7
GIN_TYPE|2.28.7||u|n|int|
GRAPH|2.5.6|2.5.7|u|a|free|
GRAPH_DUMP_FILE|2.6.4||u|a|path|
GRAPH_DUMP_FILE_RANK|2.6.4||u|a|int|0
GRAPH_FILE|2.6.4||u|a|path|
GRAPH_HELPER_DISABLE|2.11.4||u|a|int|0
GRAPH_MIXING_SUPPORT|2.13.4||d|a|int 0..1|1
GRAPH_REGISTER|2.11.4||d|a|int 0..1|0;1@2.19.1
GRAPH_STREAM_ORDERING|2.30.7||d|a|int 0..1|1
GROUP_CUDA_STREAM|2.3.5||u|a|int|
HOSTID|2.5.6||u|a|text|
IBVERBS_LIB|2.30.3||u|n|path|
IB_ADAPTIVE_ROUTING|2.16.2||d|n|int 0..1|
IB_ADDR_FAMILY|2.21.5||s|n|exactly AF_INET AF_INET6|AF_INET
IB_ADDR_RANGE|2.21.5||s|n|text|
IB_AR_THRESHOLD|2.6.4||d|n|bytes|8192
IB_CUDA_SUPPORT|2.3.5|2.3.7|d|n|int 0..1|
IB_DATA_DIRECT|2.27.3||u|n|int|1
IB_DEVICE_PCI_ORDER|2.29.7||u|n|int|1
IB_DISABLE|2.3.5||d|n|int 0..1|0
IB_ECE_ENABLE|2.23.4||d|n|int 0..1|1
IB_FIFO_TC|2.22.3||s|n|int|0;@2.24.3
IB_GDR_LEVEL|2.3.5|2.3.7|d|n|level LOC PIX PXB PHB SYS|
IB_GID_INDEX|2.3.5||s|n|int|0;@2.21.5
IB_HCA|2.3.5||s|n|text|
IB_MERGE_NICS|2.20.3||d|n|int 0..1|1
IB_MERGE_VFS|2.18.1||u|n|int|1
IB_MQP_RETRY_ALL|2.24.3||u|n|int|0
IB_MQP_RETRY_CNT|2.24.3||u|n|int|34
IB_MQP_RETRY_SLEEP_MSEC|2.24.3||u|n|int|100
IB_OOO_RQ|2.30.3||d|n|int 0..1|0
IB_PCI_RELAXED_ORDERING|2.12.7||d|n|int 0..2|2
IB_PKEY|2.8.3||u|n|int|0
IB_PREPOST_RECEIVE_WORK_REQUESTS|2.29.7||u|n|int|0;@2.30.3
IB_QPS_PER_CONNECTION|2.10.3||d|n|int 1..128|1
IB_QUERY_PORT_SPEED|2.30.7||u|n|int|1
IB_RECEIVER_SIDE_MATCHING_SCHEME|2.29.7||u|n|int|0;@2.30.3
IB_RESILIENCY_PORT_FAILOVER|2.29.7||u|n|int|0
IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS|2.29.7||u|n|int|1
IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY|2.29.7||u|n|int|10
IB_RESILIENCY_PORT_RECOVERY|2.30.3||u|n|int|0
IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT|2.30.3||u|n|int|5000
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL|2.30.3||u|n|int|500
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE|2.30.3||u|n|int|5
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE|2.30.3||u|n|int|5
IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT|2.30.3||u|n|int|4000
IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX|2.30.3||u|n|int|5
IB_RESILIENCY_PORT_RECOVERY_START_DELAY|2.30.3||u|n|int|200
IB_RETRY_CNT|2.3.5||s|n|int 0..7|7
IB_RETURN_ASYNC_EVENTS|2.23.4||s|n|int 0..1|1
IB_ROCE_VERSION_NUM|2.21.5||s|n|int|2
IB_ROUTABLE_FLID_GID_INDEX|2.22.3||u|n|int|1
IB_SL|2.3.5||s|n|int|0;@2.26.2
IB_SPLIT_DATA_ON_QPS|2.18.1||d|n|int 0..1|1;0@2.20.3
IB_SUBNET_AWARE_ROUTING|2.30.7||u|n|int|0
IB_SUBNET_PREFIX_LEN|2.30.7||u|n|int|24
IB_TC|2.3.5||s|n|int|0;@2.26.2
IB_TIMEOUT|2.3.5||s|n|int 0..31|14;18@2.14.3;20@2.23.4
IB_USE_INLINE|2.8.3||u|n|int|0
IB_WARN_RAIL_LOCAL|2.24.3||u|n|int|0
IGNORE_COLLNET_MISMATCH|2.30.3||d|n|int 0..1|0
IGNORE_CPU_AFFINITY|2.4.6||s|a|int 0..1|0
IGNORE_DISABLED_P2P|2.12.7||u|a|int|0
IGNORE_NET_MISMATCH|2.30.3||d|n|int 0..1|1
IPC_USE_ABSTRACT_SOCKET|2.29.2||d|a|int 0..1|1
L1_SHARED_MEMORY_CARVEOUT|2.12.10||u|a|int|0
LAUNCH_MODE|2.3.5||d|a|word PARALLEL GROUP|PARALLEL
LAUNCH_ORDER_IMPLICIT|2.26.2||d|a|int 0..1|0
LAUNCH_RACE_FATAL|2.26.2||d|a|int 0..1|1
LEGACY_CUDA_REGISTER|2.24.3||d|a|int 0..1|0
LL128_BUFFSIZE|2.7.3||u|a|bytes|
LL128_C2C|2.27.3||u|a|int|1
LL128_NTHREADS|2.5.6||u|a|int|
LL_BUFFSIZE|2.7.3||u|a|bytes|
LL_THRESHOLD|2.3.5|2.4.8|d|a|bytes|
LOCAL_REGISTER|2.19.1||d|a|int 0..1|1
LSA_TEAM_SIZE|2.29.7||u|v|int|0
MAX_CTAS|2.17.1||d|a|int 1..32;int 1..64@2.25.1|
MAX_NCHANNELS|2.5.6||d|a|int 1..|
MAX_NRINGS|2.3.5||d|a|int 1..|
MAX_P2P_NCHANNELS|2.7.3||u|a|int|
MEM_SYNC_DOMAIN|2.16.2||d|a|int 0..1|1
MIN_CTAS|2.17.1||d|a|int 1..32;int 1..64@2.25.1|
MIN_NCHANNELS|2.5.6||d|a|int 1..32|
MIN_NRINGS|2.3.5||d|a|int 1..32|
MIN_P2P_NCHANNELS|2.7.3||u|a|int|1
MLOPART_RDMA_ENABLE|2.30.7||u|a|int|0
MNNVL|2.20.3|2.20.5|u|v|int|
MNNVL_CLIQUE_ID|2.23.4||d|v|int|
MNNVL_CROSS_CLIQUE|2.30.3||u|v|int|0
MNNVL_ENABLE|2.21.5||d|v|int 0..2|2
MNNVL_RAIL_PER_HOST|2.28.7||u|v|int|0
MNNVL_SCATTER_NETS_ENABLE|2.27.5||u|v|int|1
MNNVL_UUID|2.25.1||d|v|int|
MULTI_RANK_GPU_ENABLE|2.30.3||s|a|int 0..1|0
MULTI_SEGMENT_REGISTER|2.29.2||u|a|int|1
NCHANNELS_PER_NET_PEER|2.12.7||u|n|int|2;@2.20.3
NET|2.10.3||s|n|text|
NETDEVS_POLICY|2.28.3||s|n|netdevs|AUTO
NET_DISABLE_INTRA|2.12.7||u|n|int|;0@2.12.10
NET_FORCE_FLUSH|2.15.1||u|n|int|1;0@2.19.1
NET_FORCE_MERGE|2.24.3||u|n|free|
NET_GDR_C2C|2.26.2||d|n|int 0..1|0;1@2.27.3
NET_GDR_LEVEL|2.4.2||d|n|level LOC PIX PXB PHB SYS|
NET_GDR_MLOPART|2.30.7||u|n|int|0
NET_GDR_READ|2.3.5||d|n|int 0..1|
NET_MERGE_LEVEL|2.24.3||u|n|level LOC PIX PXB PHB SYS|
NET_MERGE_POLICY|2.30.7||d|n|word ALL RAIL|ALL
NET_OPTIONAL_RECV_COMPLETION|2.24.3||u|n|int|1
NET_OVERHEAD|2.18.1||u|n|int|
NET_PLUGIN|2.11.4||s|n|text|
NET_PLUGIN_REF_COUNT|2.26.2||u|n|int|1;0@2.28.3
NET_SHARED_BUFFERS|2.8.3||d|n|int 0..1|1
NET_SHARED_COMMS|2.12.7||d|n|int 0..1|1
NO_CACHE|2.29.7||u|a|free|
NSOCKS_PERTHREAD|2.4.8||s|n|int 1..|
NTHREADS|2.3.5||d|a|one 64 128 256 512|512
NUM_RMA_CTX|2.29.2||u|n|int|
NVB_DISABLE|2.9.9||d|v|int 0..1|0
NVB_PRECONNECT|2.9.9||u|v|int|1
NVLINK_UTIL_CENTRIC_SCHED_ENABLE|2.27.3||u|v|int|0;@2.28.7
NVLSTREE_MAX_CHUNKSIZE|2.20.3||u|v|int|
NVLS_CHUNKSIZE|2.21.5||u|v|int|131072
NVLS_ENABLE|2.17.1||d|v|int 0..2|1;2@2.18.1
NVLS_NCHANNELS|2.17.1||u|v|int|16;@2.25.1
NVTX_DISABLE|2.28.3||u|a|int|0
OOB_NET_ENABLE|2.23.4||s|n|int 0..1|0
OOB_NET_IFNAME|2.23.4||s|n|text|
P2P_DIRECT_DISABLE|2.12.12||d|a|int 0..1|0
P2P_DISABLE|2.3.5||d|a|int 0..1|0
P2P_EPOCH_ENABLE|2.29.2||u|a|int|1
P2P_LEVEL|2.3.5||d|a|level LOC NVL PIX PXB PHB SYS|
P2P_LL_THRESHOLD|2.14.3||d|a|bytes|16384
P2P_MAX_PEERS|2.30.3||u|a|int|
P2P_NET_CHUNKSIZE|2.14.3||d|n|bytes|131072
P2P_NVL_CHUNKSIZE|2.16.2||u|a|int|524288
P2P_PCI_CHUNKSIZE|2.16.2||u|a|int|131072
P2P_PER_CHANNEL_NET_BW|2.29.2||u|a|int|14
P2P_PXN_LEVEL|2.12.7||d|n|int 0..2|2
P2P_READ_ENABLE|2.7.3||u|a|int|
P2P_SCHEDULE_GROUP_SIZE|2.28.7||u|a|int|
P2P_USE_CUDA_MEMCPY|2.13.4||u|a|int|0
PARAM_DUMP_ALL|2.30.3||u|a|bool|0
PAT_ENABLE|2.23.4||u|a|int|2
PROFILER_PLUGIN|2.23.4||s|a|text|
PROGRESS_APPENDOP_FREQ|2.16.5||u|a|int|8
PROTO|2.5.6||d|a|list protocol|
PROXY_APPEND_BATCH_SIZE|2.16.2||u|a|int|16
PROXY_CPUSET|2.28.3||u|a|text|
PROXY_DUMP_SIGNAL|2.14.3||u|a|int|
PROXY_PROFILE|2.12.7|2.22.3|u|a|path|
PXN_C2C|2.27.3||d|n|int 0..1|0;1@2.28.3
PXN_DISABLE|2.12.7||d|n|int 0..1|0
RAS_ADDR|2.24.3||d|a|text|localhost:28028
RAS_ENABLE|2.24.3||d|a|int 0..1|1
RAS_TIMEOUT_FACTOR|2.24.3||d|a|int 1..|1
REPORT_CONNECT_PROGRESS|2.19.4||u|a|int|0
RINGS|2.3.5|2.4.8|u|a|free|
RMA_DISABLE|2.30.7||u|n|int|0
RMA_PLUGIN|2.30.7||u|n|text|
RMA_PLUGIN_REF_COUNT|2.30.7||u|n|int|0
RMA_PROXY_DUMP_SIGNAL|2.29.2||u|n|int|
RMA_PROXY_QUEUE_SIZE|2.29.2||u|n|int|
RUNTIME_CONNECT|2.22.3||d|a|int 0..1|1
SET_CPU_STACK_SIZE|2.28.3||u|a|int|1
SET_STACK_SIZE|2.9.6||d|a|int 0..1|0
SET_THREAD_NAME|2.12.7||s|a|int 0..1;bool@2.30.7|0
SHADOW_MEMPOOL_MAX_SIZE|2.30.7||u|a|int|1073741824
SHARED_BUFF_COUNT|2.8.3|2.8.4|u|a|int|
SHM_DISABLE|2.3.5||d|a|int 0..1|0
SHM_LOCALITY|2.13.4||u|a|int|2
SHM_MEMCPY_MODE|2.13.4|2.30.4|u|a|int|1
SHM_USE_CUDA_MEMCPY|2.13.4|2.30.4|u|a|int|0
SINGLE_PROC_MEM_REG_ENABLE|2.28.3||u|a|int|0
SINGLE_RING_THRESHOLD|2.1|2.2|d|a|bytes|
SOCKET_FAMILY|2.3.5||s|a|exactly AF_INET AF_INET6|
SOCKET_IFNAME|2.3.5||s|a|text|
SOCKET_INLINE|2.27.3||u|n|int|128
SOCKET_MAGIC|2.30.7||s|a|text|
SOCKET_MIN_TASKSIZE|2.27.3||u|n|int|65536
SOCKET_NTHREADS|2.4.8||s|n|int 1..16|
SOCKET_POLL_TIMEOUT_MSEC|2.29.2||s|a|int 0..|0
SOCKET_RCVBUF|2.27.3||u|n|int|
SOCKET_RETRY_CNT|2.24.3||s|a|int 1..|34
SOCKET_RETRY_SLEEP_MSEC|2.24.3||s|a|int 1..|100
SOCKET_SNDBUF|2.27.3||u|n|int|
SYM_CE_THRESHOLD|2.29.2||u|a|int|8388608
SYM_CTAS|2.27.3||u|a|int|0
SYM_GIN_KERNELS_ENABLE|2.29.7||d|n|int 0..1|1
SYM_KERNEL|2.27.3||u|a|text|
SYM_NOWIN_ENABLE|2.29.2||u|a|int|0
SYM_REUSE_SYSMEM_HANDLES|2.30.4||u|a|int|0
SYM_RS_GIN_CHUNK_SIZE|2.30.7||u|a|int|
SYM_TMA_ENABLE|2.30.3||u|a|int|0
THREAD_THRESHOLD|2.3.5|2.4.8|u|a|int|
THREAD_THRESHOLDS|2.5.6||u|a|free|
TOPO_DUMP_FILE|2.6.4||s|a|path|
TOPO_DUMP_FILE_RANK|2.6.4||u|a|int|0
TOPO_FILE|2.6.4||s|a|path|
TOPO_SPLIT_MLOPART|2.30.7||u|a|int|1
TREE_THRESHOLD|2.4.2|2.4.8|d|a|bytes|
TUNER_PLUGIN|2.19.1||s|a|text|
UID_STAGGER_RATE|2.23.4||s|a|int 1..|7000
UID_STAGGER_THRESHOLD|2.23.4||s|a|int 1..|256
UNPACK_DOUBLE_NCHANNELS|2.22.3||u|n|int|1
WARN_ENABLE_DEBUG_INFO|2.19.4||u|a|int 0..1;bool@2.30.7|0
WIN_ENABLE|2.27.3||d|a|int 0..1|1
WIN_STRIDE|2.27.3||u|a|int|
WORK_ARGS_BYTES|2.22.3||u|a|int|
WORK_FIFO_BYTES|2.22.3||u|a|int|
WORK_FIFO_DEPTH|2.13.4|2.21.5|u|a|int|65536
"""

_CLASSES: Mapping[str, VariableClass] = {"s": "system", "d": "debugging", "u": "undocumented"}
_SCOPES: Mapping[str, Scope] = {"a": "any", "n": "network", "v": "nvlink"}


def _history(text: str, since: Version) -> tuple[tuple[Version, str], ...]:
    first, *later = text.split(";")
    changes = [entry.rsplit("@", 1) for entry in later]
    return ((since, first), *((parse_version(release), value) for value, release in changes))


def _variable(line: str) -> Variable:
    name, since_text, until, variable_class, scope, kinds, defaults = line.split("|")
    since = parse_version(since_text)
    return Variable(
        name=f"NCCL_{name}",
        since=since,
        until=parse_version(until) if until else None,
        variable_class=_CLASSES[variable_class],
        scope=_SCOPES[scope],
        kinds=_history(kinds, since),
        defaults=_history(defaults, since),
    )


VARIABLES: Mapping[str, Variable] = {v.name: v for v in map(_variable, _TABLE.split("\n")[1:-1])}
"""All variables by name."""
