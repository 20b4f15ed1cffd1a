"""The shipped process, from its flags to its end."""

import asyncio
import os
import re
import signal
import sys
from contextlib import asynccontextmanager

import pytest
import yaml

from tests.component.webhook.cluster import bundle, put_configuration, put_secret
from tests.component.webhook.test_https import BAD, GOOD
from tests.component.webhook.tls import PATIENCE, PLACE, connected


@asynccontextmanager
async def process(tmp_path, server, *more):
    """Run `dra-gpu webhook` with a kubeconfig; yields it and its port once it listens."""
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
        async with asyncio.timeout(PATIENCE):
            while b"the webhook listens" not in (line := await running.stderr.readline()):
                assert line, "it ended before it listened"
        yield running, int(re.search(rb'"port": (\d+)', line)[1])
    finally:
        if running.returncode is None:
            running.kill()
        await running.wait()


async def said(running, words):
    """Wait until a line of the log has some words; returns it."""
    async with asyncio.timeout(PATIENCE):
        while words not in (line := await running.stderr.readline()):
            assert line, f"it ended without saying {words}"
    return line


async def test_it_makes_its_certificate_answers_reviews_and_ends_when_asked(tmp_path, api_server):
    put_configuration(api_server)
    put_secret(api_server)
    async with process(tmp_path, api_server) as (running, port):
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


async def test_files_of_cert_manager_need_no_cluster(tmp_path, api_server, webhook):
    (tmp_path / "tls.crt").write_bytes(webhook.material.serving.certificate)
    (tmp_path / "tls.key").write_bytes(webhook.material.serving.key)
    files = (f"--tls-cert-file={tmp_path}/tls.crt", f"--tls-private-key-file={tmp_path}/tls.key")

    async with process(tmp_path, api_server, *files) as (running, port):
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
