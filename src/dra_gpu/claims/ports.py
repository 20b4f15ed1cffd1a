"""What the claims engine needs of the outside: claims as the API server has them, and a place for CDI files."""

from collections.abc import Collection, Hashable
from pathlib import Path
from typing import Protocol

from dra_gpu.api.claim_resize import ClaimResize
from dra_gpu.api.resource_v1 import ResourceClaim
from dra_gpu.cdi.spec import Spec


class ClaimReadError(Exception):
    """The API server did not answer a read. The message names the claim, the reason and the remedy.

    Attributes:
        retryable: the same read may succeed in a moment (timeouts, 429, 5xx), unlike missing rights.
    """

    def __init__(self, message: str, *, retryable: bool) -> None:
        super().__init__(message)
        self.retryable = retryable


class ClaimReader(Protocol):
    """Reads claims from the API server."""

    async def get(self, namespace: str, name: str) -> ResourceClaim | None:
        """Return the claim of that name, whatever its UID; None when there is none.

        One attempt with a deadline of its own (a few seconds); the engine repeats it.

        Raises:
            ClaimReadError: no answer that tells whether the claim exists.
        """


class ResizeReader(Protocol):
    """Reads ClaimResizes from the API server."""

    async def get(self, namespace: str, name: str) -> ClaimResize | None:
        """Return the object of that name; None when there is none. One attempt, as for claims.

        Raises:
            ClaimReadError: no answer that tells whether it exists.
        """


class SpecStore(Protocol):
    """CDI files of claims, as `dra_gpu.cdi.store.SpecStore` keeps them. Every method blocks shortly."""

    def write(self, claim_uid: str, spec: Spec) -> Path:
        """Write the claim's file so that no reader sees a half of it, with the lowest sufficient CDI version."""

    def read(self, claim_uid: str) -> Spec | None:
        """Return the content of the claim's file; None when there is no file."""

    def mark(self, claim_uid: str) -> Hashable:
        """Return what changes whenever the claim's file does, None when there is no file. One system call."""

    def remove(self, claim_uid: str) -> None:
        """Remove the claim's file; a missing one is as good."""

    def claim_uids(self) -> Collection[str]:
        """Return the claims that have a file of ours."""

    def clean_temporaries(self) -> int:
        """Remove what killed writers left behind, and tell how many files that was."""
