"""What goes over the service's socket: a JSON object a line, either way.

A request has a number, which its answer carries; answers may come in another order than the requests.
"""

import msgspec

from dra_gpu.mps.service import Limits, MpsErrorKind

#: Longest request: five short texts.
MAX_REQUEST = 16 * 1024
#: Longest answer: sixteen GPUs, sixty clients each, named by each of a hundred shares.
MAX_ANSWER = 4 * 1024 * 1024
SOCKET_NAME = "mps.sock"


class _Request(msgspec.Struct, frozen=True, tag_field="call", rename="camel", omit_defaults=True):
    """What all requests have."""

    id: int


class EnsureRequest(_Request, frozen=True, tag="ensure"):
    """`MpsService.ensure`; answered by a `Daemon`."""

    gpu: str


class ShareRequest(_Request, frozen=True, tag="share"):
    """`MpsService.share`; answered by a `Share`."""

    gpu: str
    name: str
    limits: Limits = Limits()


class LimitsRequest(_Request, frozen=True, tag="limits"):
    """`MpsService.limits`; answered by a `Share`."""

    gpu: str
    name: str
    limits: Limits = Limits()


class ClientsRequest(_Request, frozen=True, tag="clients"):
    """`MpsService.clients`; answered by a list of `GpuClients`."""

    gpu: str = ""


class StopRequest(_Request, frozen=True, tag="stop"):
    """`MpsService.stop`; answered by null."""

    gpu: str
    name: str = ""


Request = EnsureRequest | ShareRequest | LimitsRequest | ClientsRequest | StopRequest


class Failure(msgspec.Struct, frozen=True):
    """Why a request was refused, as `MpsError` says it."""

    kind: MpsErrorKind
    message: str


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer to a request: a result, or an error. Number 0 answers what could not be read."""

    id: int
    result: msgspec.Raw = msgspec.Raw(b"null")
    error: Failure | None = None
