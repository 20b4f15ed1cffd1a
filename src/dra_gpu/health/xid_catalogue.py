"""What NVIDIA says about each XID, trimmed to what this driver goes by: the number, what to do, and what it is called.

Source: NVIDIA's Xid-Catalog.xlsx as NVSentinel v1.14.0 carries it (health-monitors/syslog-health-monitor), column
"Immediate Action"; numbers that it calls unused are left out. Workflows are named by where they end. Pure.
"""

import enum
from collections.abc import Mapping
from typing import NamedTuple


class Action(enum.Enum):
    """What is to be done after an XID."""

    IGNORE = "nothing"
    FOLLOW_OTHER = "what the XID that comes with it says"
    RESTART_APP = "restart the workload"
    RESET_GPU = "reset the GPU"
    RESTART_VM = "restart the VM that has the GPU"
    RESTART_NODE = "reboot the node"
    CHECK_NVLINK = "reset the GPU, and look at its NVLinks"
    CHECK_MECHANICALS = "look at seating and power of the board"
    UPDATE_SOFTWARE = "update driver or firmware"
    INVESTIGATE = "find out what it is; support may be needed"


class Xid(NamedTuple):
    """One kind of error: what to do about it, and its name."""

    action: Action
    name: str


CATALOGUE: Mapping[int, Xid] = {
    8: Xid(Action.RESTART_APP, "GPU stopped processing"),
    11: Xid(Action.RESTART_APP, "Invalid or corrupted push buffer stream"),
    13: Xid(Action.RESTART_APP, "Graphics Engine Exception"),
    14: Xid(Action.IGNORE, "Unused"),
    25: Xid(Action.RESTART_APP, "Invalid or illegal push buffer stream"),
    31: Xid(Action.RESTART_APP, "GPU memory page fault"),
    32: Xid(Action.RESTART_APP, "Invalid or corrupted push buffer stream"),
    37: Xid(Action.IGNORE, "Driver firmware error"),
    38: Xid(Action.IGNORE, "Driver firmware error"),
    39: Xid(Action.RESTART_APP, "Copy Engine Exception"),
    40: Xid(Action.RESTART_APP, "Copy Engine Exception"),
    41: Xid(Action.RESTART_APP, "Copy Engine Exception"),
    43: Xid(Action.IGNORE, "GPU stopped processing"),
    44: Xid(Action.IGNORE, "Graphics Engine fault during context switch"),
    45: Xid(Action.FOLLOW_OTHER, "Preemptive cleanup, due to previous errors"),
    46: Xid(Action.RESET_GPU, "GPU stopped processing"),
    48: Xid(Action.RESET_GPU, "Double Bit ECC Error"),
    54: Xid(Action.CHECK_MECHANICALS, "Auxiliary power is not connected"),
    60: Xid(Action.RESTART_APP, "Video processor exception"),
    62: Xid(Action.RESET_GPU, "Internal micro-controller halt"),
    63: Xid(Action.IGNORE, "GPU memory remapping event"),
    64: Xid(Action.RESET_GPU, "GPU memory remapping failure"),
    66: Xid(Action.IGNORE, "Illegal access by driver"),
    67: Xid(Action.IGNORE, "Illegal access by driver"),
    68: Xid(Action.RESTART_APP, "NVDEC0 Exception"),
    69: Xid(Action.RESTART_APP, "Graphics Engine class error"),
    70: Xid(Action.RESTART_APP, "CE3: Unknown Error"),
    71: Xid(Action.RESTART_APP, "CE4: Unknown Error"),
    72: Xid(Action.RESTART_APP, "CE5: Unknown Error"),
    74: Xid(Action.CHECK_NVLINK, "NVLINK Error"),
    75: Xid(Action.RESTART_APP, "CE6: Unknown Error"),
    76: Xid(Action.RESTART_APP, "CE7: Unknown Error"),
    77: Xid(Action.RESTART_APP, "CE8: Unknown Error"),
    78: Xid(Action.UPDATE_SOFTWARE, "vGPU Start Error"),
    79: Xid(Action.RESTART_NODE, "GPU has fallen off the bus"),
    80: Xid(Action.RESTART_APP, "Corrupted data sent to GPU"),
    82: Xid(Action.RESTART_APP, "NVJPG0 Error"),
    83: Xid(Action.RESTART_APP, "NVDEC1 Error"),
    84: Xid(Action.RESTART_APP, "NVDEC2 Error"),
    85: Xid(Action.RESTART_APP, "CE9: Unknown Error"),
    86: Xid(Action.RESTART_APP, "OFA Exception"),
    88: Xid(Action.RESTART_APP, "NVDEC3 Error"),
    89: Xid(Action.RESTART_APP, "NVDEC4 Error"),
    92: Xid(Action.IGNORE, "High single-bit ECC error rate"),
    93: Xid(Action.IGNORE, "Non-fatal violation of provisioned InfoROM wear limit"),
    94: Xid(Action.RESTART_APP, "Contained memory error"),
    95: Xid(Action.RESET_GPU, "Uncontained memory error"),
    96: Xid(Action.RESTART_APP, "NVDEC5 Error"),
    97: Xid(Action.RESTART_APP, "NVDEC6 Error"),
    98: Xid(Action.RESTART_APP, "NVDEC7 Error"),
    99: Xid(Action.RESTART_APP, "NVJPG1 Error"),
    100: Xid(Action.RESTART_APP, "NVJPG2 Error"),
    101: Xid(Action.RESTART_APP, "NVJPG3 Error"),
    102: Xid(Action.RESTART_APP, "NVJPG4 Error"),
    103: Xid(Action.RESTART_APP, "NVJPG5 Error"),
    104: Xid(Action.RESTART_APP, "NVJPG6 Error"),
    105: Xid(Action.RESTART_APP, "NVJPG7 Error"),
    106: Xid(Action.IGNORE, "SMBPBI Test Message"),
    107: Xid(Action.IGNORE, "SMBPBI Test Message Silent"),
    108: Xid(Action.IGNORE, "Unused"),
    109: Xid(Action.RESET_GPU, "Context Switch Timeout Error"),
    110: Xid(Action.RESET_GPU, "Security Fault Error"),
    119: Xid(Action.RESET_GPU, "GSP RPC Timeout"),
    120: Xid(Action.RESET_GPU, "GSP Error"),
    121: Xid(Action.IGNORE, "C2C Error"),
    126: Xid(Action.RESTART_APP, "CE10: Unknown Error"),
    127: Xid(Action.RESTART_APP, "CE11: Unknown Error"),
    128: Xid(Action.RESTART_APP, "CE12: Unknown Error"),
    129: Xid(Action.RESTART_APP, "CE13: Unknown Error"),
    130: Xid(Action.RESTART_APP, "CE14: Unknown Error"),
    131: Xid(Action.RESTART_APP, "CE15: Unknown Error"),
    132: Xid(Action.RESTART_APP, "CE16: Unknown Error"),
    133: Xid(Action.RESTART_APP, "CE17: Unknown Error"),
    134: Xid(Action.RESTART_APP, "CE18: Unknown Error"),
    135: Xid(Action.RESTART_APP, "CE19: Unknown Error"),
    136: Xid(Action.RESET_GPU, "Link Training Failed"),
    137: Xid(Action.IGNORE, "NVLink Privilege Error"),
    139: Xid(Action.RESTART_APP, "OFA1 Error"),
    140: Xid(Action.RESET_GPU, "ECC Unrecovered Error"),
    141: Xid(Action.IGNORE, "CUDA Fast Path Error"),
    142: Xid(Action.INVESTIGATE, "NVENC3 Error"),
    143: Xid(Action.RESET_GPU, "GPU Initialization Error"),
    144: Xid(Action.CHECK_NVLINK, "NVLINK: SAW Error"),
    145: Xid(Action.CHECK_NVLINK, "NVLINK: RLW Error"),
    146: Xid(Action.CHECK_NVLINK, "NVLINK: TLW Error"),
    147: Xid(Action.CHECK_NVLINK, "NVLINK: TREX Error"),
    148: Xid(Action.CHECK_NVLINK, "NVLINK: NVLPW_CTRL Error"),
    149: Xid(Action.CHECK_NVLINK, "NVLINK: NETIR Error"),
    150: Xid(Action.CHECK_NVLINK, "NVLINK: MSE Error"),
    151: Xid(Action.RESTART_VM, "Key rotation Error"),
    152: Xid(Action.IGNORE, "DLA SMMU Error"),
    153: Xid(Action.IGNORE, "DLA timeout Error"),
    154: Xid(Action.FOLLOW_OTHER, "GPU Recovery Action Changed"),
    155: Xid(Action.RESET_GPU, "NVLINK: SW Defined Error"),
    156: Xid(Action.RESET_GPU, "Resource Retirement Event"),
    157: Xid(Action.IGNORE, "Resource Retirement Failure"),
    158: Xid(Action.RESET_GPU, "GPU Fatal Timeout"),
    159: Xid(Action.RESTART_APP, "CHI Non-Data Error"),
    160: Xid(Action.IGNORE, "Channel Retirement Event"),
    161: Xid(Action.IGNORE, "Channel Retirement Failure"),
    162: Xid(Action.INVESTIGATE, "Power smoothing reengaged"),
    163: Xid(Action.INVESTIGATE, "Power smoothing disengaged"),
    164: Xid(Action.INVESTIGATE, "Power smoothing: low lifetime reached"),
    165: Xid(Action.INVESTIGATE, "Power smoothing: lifetime exhausted"),
    166: Xid(Action.INVESTIGATE, "Traffic before the link was set up for encryption"),
    167: Xid(Action.INVESTIGATE, "PCIe fatal timeout"),
    168: Xid(Action.INVESTIGATE, "Errors in the write protected region"),
    169: Xid(Action.INVESTIGATE, "Internal micro-controller halt"),
    170: Xid(Action.INVESTIGATE, "Interrupt seen in confidential mode"),
    171: Xid(Action.INVESTIGATE, "Details of an Xid 48"),
    172: Xid(Action.INVESTIGATE, "Details of an Xid 48"),
}
"""By number."""
