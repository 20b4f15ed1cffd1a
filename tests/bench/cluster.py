"""The API server the plugin reads: claims with an allocation are made there, and its share of a call is measured.

Blocking on purpose: nothing else runs while claims are made, and a GET on a kept connection is the floor of a claim
GET.
"""

import http.client
import itertools
import json
import os
import ssl
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from dra_gpu_sim.local.kubelet import Claim

Json = dict[str, Any]


class ApiError(Exception):
    """The API server refused a request of the benchmark."""


class Api:
    """A Kubernetes API server over one kept connection."""

    def __init__(self, url: str, token_file: Path | None = None, ca_file: Path | None = None) -> None:
        parts = urlsplit(url)
        if parts.hostname is None:
            raise ApiError(f"{url!r} names no server: give http(s)://host:port")
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=str(ca_file) if ca_file else None)
            self._connection: http.client.HTTPConnection = http.client.HTTPSConnection(
                parts.hostname, parts.port, timeout=30, context=context
            )
        else:
            self._connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=30)
        self._headers = {"Content-Type": "application/json"}
        if token_file is not None:
            self._headers["Authorization"] = f"Bearer {token_file.read_text().strip()}"

    def call(self, method: str, path: str, body: Json | None = None) -> Json:
        headers = self._headers | ({"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {})
        self._connection.request(method, path, json.dumps(body) if body is not None else None, headers)
        response = self._connection.getresponse()
        data = response.read()
        if response.status >= 300:
            raise ApiError(f"{method} {path}: {response.status} {data[:300]!r}")
        answer: Json = json.loads(data)
        return answer

    def close(self) -> None:
        self._connection.close()

    def claim_reads(self) -> int | None:
        """How many claims were read so far; None if this server does not count."""
        return self._requests("resourceclaims", "get")

    def slice_writes(self) -> int | None:
        """How often slices were written so far; None if this server does not count."""
        return self._requests("resourceslices", "create", "update", "patch", "delete")

    def _requests(self, resource: str, *verbs: str) -> int | None:
        try:
            log = self.call("GET", "/_log?since=0")
        except ApiError:
            return None
        return sum(1 for r in log["requests"] if r["verb"] in verbs and r["resource"] == resource)


class Claims:
    """Makes allocated claims and takes them away again."""

    def __init__(self, api: Api, driver: str, pool: str, namespace: str) -> None:
        self.api = api
        self._driver = driver
        self._pool = pool
        self._path = f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaims"
        self._namespace = namespace
        self._numbers = itertools.count()
        self._made: list[Claim] = []

    def make(
        self,
        device: str,
        *,
        admin: bool = False,
        config: Mapping[str, Any] | None = None,
        share: Mapping[str, str] | None = None,
        pod: str = "",
    ) -> Claim:
        """Make one claim that holds `device`.

        Args:
            device: its name.
            admin: with admin access.
            config: opaque parameters for the driver.
            share: what of the device's capacities it consumes, as a share of it.
            pod: UID of the pod that may use it.
        """
        name = f"bench-{os.getpid()}-{next(self._numbers)}"
        exactly: Json = {"deviceClassName": "bench.example.com"}
        result: Json = {"request": "gpu", "driver": self._driver, "pool": self._pool, "device": device}
        if admin:
            exactly["adminAccess"] = result["adminAccess"] = True
        if share is not None:
            exactly["capacity"] = {"requests": dict(share)}
            result |= {"shareID": str(uuid.uuid4()), "consumedCapacity": dict(share)}
        devices: Json = {"requests": [{"name": "gpu", "exactly": exactly}]}
        allocation: Json = {"results": [result]}
        if config is not None:
            opaque = {"opaque": {"driver": self._driver, "parameters": config}}
            devices["config"] = [opaque]
            allocation["config"] = [{"source": "FromClaim", "requests": [], **opaque}]
        claim = self.api.call(
            "POST",
            self._path,
            {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceClaim",
                "metadata": {"name": name, "namespace": self._namespace},
                "spec": {"devices": devices},
            },
        )
        claim["status"] = {"allocation": {"devices": allocation}}
        if pod:
            claim["status"]["reservedFor"] = [{"resource": "pods", "name": name, "uid": pod}]
        self.api.call("PUT", f"{self._path}/{name}/status", claim)
        made = Claim(self._namespace, name, claim["metadata"]["uid"])
        self._made.append(made)
        return made

    def read(self, claim: Claim) -> float:
        """Seconds that one GET of `claim` takes."""
        started = time.perf_counter()
        self.api.call("GET", f"{self._path}/{claim.name}")
        return time.perf_counter() - started

    def remove_all(self) -> None:
        """Delete every claim made here."""
        while self._made:
            self.api.call("DELETE", f"{self._path}/{self._made.pop().name}")
