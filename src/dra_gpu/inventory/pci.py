"""PCI addresses in the one spelling that sysfs, attributes and logs share: `0000:3b:00.0`.

NVML prints a domain of eight upper-case digits (`00000000:3B:00.0`); sysfs prints at least four lower-case ones
(Linux, drivers/pci: `%04x:%02x:%02x.%d`).
"""

import re

_ADDRESS = re.compile(r"(?:([0-9a-fA-F]{1,8}):)?([0-9a-fA-F]{1,2}):([0-9a-fA-F]{1,2})(?:\.([0-7]))?")


def normalise(text: str) -> str | None:
    """Return sysfs' spelling of a PCI address, or None for a text that is none (an empty one, for example)."""
    match = _ADDRESS.fullmatch(text.strip().strip("\0"))
    if match is None:
        return None
    domain, bus, device, function = match.groups(default="0")
    return f"{int(domain, 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function}"
