"""`dra-gpu` as a later release would be: each device has one attribute more. Run as a program by tests of upgrades."""

import sys

from dra_gpu.__main__ import main
from dra_gpu.api.resource_v1 import DeviceAttribute
from dra_gpu.inventory import attributes
from dra_gpu.inventory.model import DriverVersions, Gpu

#: The attribute that only the later release publishes.
NEW_ATTRIBUTE = "fromLaterRelease"


def _with_new_attribute() -> None:
    whole, shared, monitor = attributes.of_whole_gpu, attributes.of_shared, attributes.of_monitor
    new = {NEW_ATTRIBUTE: DeviceAttribute(bool_=True)}

    def of_whole_gpu(gpu: Gpu, driver: DriverVersions, nvlink_group: str) -> dict[str, DeviceAttribute]:
        return whole(gpu, driver, nvlink_group) | new

    def of_shared(gpu: Gpu, driver: DriverVersions, nvlink_group: str) -> dict[str, DeviceAttribute]:
        return shared(gpu, driver, nvlink_group) | new

    def of_monitor(gpu: Gpu, driver: DriverVersions) -> dict[str, DeviceAttribute]:
        return monitor(gpu, driver) | new

    attributes.of_whole_gpu = of_whole_gpu
    attributes.of_shared = of_shared
    attributes.of_monitor = of_monitor


if __name__ == "__main__":
    _with_new_attribute()
    sys.exit(main())
