"""The shipped process, from its flags to its end."""

import asyncio
import os
import re
import signal
import sys
import time
from contextlib import asynccontextmanager

import pytest
import yaml

from tests.component.node.scraping import Scraper
from tests.component.webhook.cluster import bundle, put_configuration, put_secret
from tests.component.webhook.test_https import BAD, GOOD
from tests.component.webhook.tls import PATIENCE, PLACE, connected
from tests.unit.validation.manifests import claim, request
from tests.unit.webhook.questions import review


@asynccontextmanager
async def process(tmp_path, server, *more):
    """Run `dra-gpu webhook` with a kubeconfig; yields it, its port once it listens, and who scrapes it."""
    kubeconfig = tmp_path / "kubeconfig"
    entry = {"name": "c", "cluster": {"server": server.url}}
    context = {"name": "c", "context": {"cluster": "c", "user": ""}}
    kubeconfig.write_text(yaml.safe_dump({"current-context": "c", "clusters": [entry], "contexts": [context]}))
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "dra_gpu",
        "webhook",
        "--port=0",
        f"--kubeconfig={kubeconfig}",
        f"--namespace={PLACE.namespace}",
        "--drain=0.1",
        *more,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        metrics = 0
        async with asyncio.timeout(PATIENCE):
            while b"the webhook listens" not in (line := await running.stderr.readline()):
                assert line, "it ended before it listened"
                metrics = port_in(line) if b"serving metrics" in line else metrics
        yield running, port_in(line), Scraper(metrics)
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


def port_in(line):
    """The port that a line of the log names."""
    return int(re.search(rb'"port": (\d+)', line)[1])


async def said(running, words):
    """Wait until a line of the log has some words; returns it."""
    async with asyncio.timeout(PATIENCE):
        while words not in (line := await running.stderr.readline()):
            assert line, f"it ended without saying {words}"
    return line


async def test_it_makes_its_certificate_answers_reviews_and_ends_when_asked(tmp_path, api_server):
    put_configuration(api_server)
    put_secret(api_server)
    async with process(tmp_path, api_server) as (running, port, _):
        await said(running, b"new connections are shown another certificate")

        async with connected(port, bundle(api_server)) as client:
            assert (await client.review(GOOD))["allowed"]
            assert not (await client.review(BAD))["allowed"]
            denied = await said(running, b'"event": "denied"')
            assert len(denied) < 1024
            assert (await client.request("GET", "/readyz"))[0] == 200
            running.send_signal(signal.SIGTERM)
            async with asyncio.timeout(PATIENCE):
                assert await running.wait() == 0


async def test_it_tells_what_it_was_asked_and_answered_in_few_words_whatever_came(tmp_path, api_server):
    put_configuration(api_server)
    async with process(tmp_path, api_server, "--http-endpoint=127.0.0.1:0") as (running, port, scrape):
        await said(running, b"new connections are shown another certificate")
        async with connected(port, bundle(api_server)) as client:
            for asked in (GOOD, BAD, BAD):
                await client.review(asked)
            for number in range(20):
                odd = {"group": f"g{number}.example.com", "version": f"v{number}", "kind": f"Kind{number}"}
                await client.review(review(claim(request(cls=f"class-{number}")), kind=odd))
                await client.request("GET", f"/nowhere/{number}")
        found = await scrape.families()

    reviews = found.matching("dra_gpu_webhook_reviews_total")
    told = {(one.labels["kind"], one.labels["operation"], one.labels["outcome"]): one.value for one in reviews}
    assert told == {
        ("ResourceClaim", "CREATE", "allowed"): 1,
        ("ResourceClaim", "CREATE", "denied"): 2,
        ("other", "CREATE", "foreign"): 20,
    }
    assert found.value("dra_gpu_webhook_refused_requests_total", status="404") == 20
    assert found.value("dra_gpu_webhook_review_duration_seconds_count") == 23
    assert found.value("dra_gpu_webhook_certificate_expiry_timestamp_seconds") > time.time()
    assert found.value("dra_gpu_webhook_dropped_connections_total") == 0
    assert found.value("dra_gpu_build_info", component="webhook") == 1


async def test_files_of_cert_manager_need_no_cluster(tmp_path, api_server, webhook):
    (tmp_path / "tls.crt").write_bytes(webhook.material.serving.certificate)
    (tmp_path / "tls.key").write_bytes(webhook.material.serving.key)
    files = (f"--tls-cert-file={tmp_path}/tls.crt", f"--tls-private-key-file={tmp_path}/tls.key")

    async with process(tmp_path, api_server, *files) as (running, port, _):
        await said(running, b"new connections are shown another certificate")
        async with connected(port, webhook.material.authorities) as client:
            assert (await client.review(GOOD))["allowed"]
    assert api_server.log.count == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--port=65536"], "--port 65536 is none: write one from 0 to 65535"),
        (["--tls-cert-file=/x"], "belong together: give both, or none"),
    ],
)
async def test_a_wrong_setting_ends_it_with_what_to_write(arguments, words):
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "dra_gpu", "webhook", *arguments, stderr=asyncio.subprocess.PIPE, env=os.environ
    )

    _, text = await asyncio.wait_for(running.communicate(), PATIENCE)

    assert running.returncode == 2
    assert words in text.decode()
