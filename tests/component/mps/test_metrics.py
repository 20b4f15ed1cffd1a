"""What the MPS service tells a Prometheus server."""

import re

from dra_gpu.mps.service import Limits
from tests.component.node.scraping import Scraper


async def test_daemons_shares_clients_and_restarts_are_told_and_gone_when_nothing_is_shared(make_service):
    service = make_service(started=False)
    service.start("--http-endpoint", "127.0.0.1:0")
    share = await service.client.share(service.gpu, "s_" + "0" * 32, Limits(compute_percent=20))
    port = re.findall(r'"port": (\d+)', service.log.read_text())[-1]
    scrape = Scraper(int(port))
    with service.attach(share):
        found = await scrape.until_told("dra_gpu_mps_clients", gpu=service.gpu)

    assert found.value("dra_gpu_mps_daemon_up", gpu=service.gpu) == 1
    assert found.value("dra_gpu_mps_daemon_restarts_total", gpu=service.gpu) == 0
    assert found.value("dra_gpu_mps_shares", gpu=service.gpu) == 1
    assert found.value("dra_gpu_mps_clients", gpu=service.gpu) == 1
    assert found.label_values("dra_gpu_mps_daemon_up", "gpu") == {service.gpu}
    assert await scrape.get("/healthz") == (200, "ok\n")
