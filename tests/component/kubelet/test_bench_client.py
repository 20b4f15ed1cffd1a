"""The benchmark client against a plugin that does nothing and an API server in memory."""

import json
import shlex
import sys
from pathlib import Path

import pytest

from dra_gpu_sim.apiserver.server import ApiServer
from tests.bench import client


@pytest.fixture
async def api():
    server = ApiServer()
    await server.start()
    yield server
    await server.stop()


async def test_every_figure_is_measured_and_nothing_stays_behind(api: ApiServer, short_path: Path, capsys):
    start = [sys.executable, "-m", "tests.bench.null_plugin", "--driver", "d.example.com", "--pool", "n"]
    start += ["--registry", str(short_path / "r"), "--plugins", str(short_path / "p")]
    options = client.parse(
        [
            *("--socket", str(short_path / "p/d.example.com/dra.sock")),
            *("--registration", str(short_path / "r/d.example.com-reg.sock")),
            *("--driver", "d.example.com", "--pool", "n", "--devices", "gpu-0,gpu-1", "--monitors", "gpu-0-monitor"),
            *("--api", api.url, "--state-dir", str(short_path), "--start", shlex.join(start)),
            *("--log", str(short_path / "log"), "--slow-on", "true", "--slow-off", "true"),
            *("--runs", "1", "--claims", "8", "--at-once", "4", "--samples", "4", "--held", "2,4"),
        ]
    )

    rows, notes = await in_thread(client.measure, options)
    client.show(rows, notes, "json")

    figures = {figure["key"]: figure for figure in json.loads(capsys.readouterr().out)["figures"]}
    assert {
        "start -> socket",
        "fresh prepare p50",
        "repeated prepare p50",
        "claim GETs of repeated prepares",
        "8 claims by 4 calls at once: failed",
        "slow hardware: 8 claims by 2 calls at once",
        "fresh prepare p50, 4 held",
        "RSS after the load",
    } <= set(figures)
    assert figures["claim GETs of repeated prepares"]["verdict"] == "PASS"
    assert figures["fresh prepare p50"]["floor"] > 0
    assert notes == [
        "shares: skipped, they need devices of which claims may hold shares (--shared)",
        "partitions: skipped, they need two of a GPU (--partitions) and its library (--nvml)",
    ]
    assert not [record for record in api.log.since() if record.status >= 400]


async def test_a_plugin_that_is_not_there_is_named(api: ApiServer, short_path: Path, capsys):
    status = await in_thread(
        client.main,
        [
            *("--socket", str(short_path / "absent.sock"), "--driver", "d.example.com", "--pool", "n"),
            *("--devices", "gpu-0", "--api", api.url, "--state-dir", str(short_path), "--runs", "1"),
        ],
    )

    assert status == 2
    assert "bench: " in capsys.readouterr().err


async def in_thread(function, *arguments):
    """The client blocks and has an event loop of its own; the API server runs in this one."""
    import asyncio

    return await asyncio.to_thread(function, *arguments)
