"""A Prometheus server's side of a scrape, read by Prometheus' own parser."""

import asyncio
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from tests.component.node.node_under_fire import PATIENCE


@dataclass(frozen=True)
class Families:
    """All samples of one scrape."""

    samples: tuple

    def value(self, name: str, **labels: str) -> float:
        """The one sample of that name with these labels among its own."""
        (found,) = self.matching(name, **labels)
        return found.value

    def matching(self, name: str, **labels: str) -> list:
        return [one for one in self.samples if one.name == name and labels.items() <= one.labels.items()]

    def label_values(self, name: str, label: str) -> set[str]:
        return {one.labels[label] for one in self.matching(name)}


@dataclass(frozen=True)
class Scraper:
    """Asks one process."""

    port: int

    async def get(self, path: str) -> tuple[int, str]:
        """Return status and body."""
        async with asyncio.timeout(PATIENCE):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
            writer.write(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
            head, _, body = (await reader.read()).partition(b"\r\n\r\n")
            writer.close()
            return int(head.split()[1]), body.decode()

    async def until(self, path: str, status: int) -> tuple[int, str]:
        """Ask until the answer has that status."""
        async with asyncio.timeout(PATIENCE):
            while (answer := await self.get(path))[0] != status:
                await asyncio.sleep(0.05)
            return answer

    async def text(self) -> str:
        status, body = await self.get("/metrics")
        assert status == 200
        return body

    async def families(self) -> Families:
        found = text_string_to_metric_families(await self.text())
        return Families(tuple(sample for family in found for sample in family.samples))

    async def until_told(self, name: str, **labels: str) -> Families:
        """Scrape until there is a sample of that name with these labels."""
        async with asyncio.timeout(PATIENCE):
            while not (found := await self.families()).matching(name, **labels):
                await asyncio.sleep(0.05)
            return found

    async def prepared(self) -> dict[str, int]:
        """Prepared devices by view."""
        found = (await self.families()).matching("nvidia_dra_prepared_devices")
        return {one.labels["device_type"]: int(one.value) for one in found}
