"""`admission.k8s.io/v1`, AdmissionReview: what the API server asks a webhook, and what it is answered.

Tolerant of fields that this release does not know. Source: Kubernetes v1.37, k8s.io/api/admission/v1/types.go; for the
answer's status k8s.io/apimachinery/pkg/apis/meta/v1/types.go.
"""

import enum
from typing import Final

import msgspec

API_VERSION: Final = "admission.k8s.io/v1"


class _Wire(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True):
    """A camelCase wire object whose unset fields are not sent."""


class Operation(enum.Enum):
    """What is done to the object."""

    CREATE = "CREATE"
    UPDATE = "UPDATE"
    DELETE = "DELETE"
    CONNECT = "CONNECT"


class GroupVersionKind(_Wire, frozen=True):
    """A kind; the core group is empty."""

    version: str
    kind: str
    group: str = ""

    @property
    def api_version(self) -> str:
        """`group/version`, as it stands in an object."""
        return f"{self.group}/{self.version}" if self.group else self.version


class AdmissionRequest(_Wire, frozen=True, kw_only=True):
    """The question.

    Attributes:
        uid: names this question; the answer repeats it.
        kind: of the object, in the version that the webhook asked for.
        operation: what is done.
        name: of the object; may be empty at a creation.
        namespace: of the object.
        sub_resource: such as `status`; empty for the object itself.
        object: the object as it would be stored; nothing at a deletion.
        old_object: the object as it is.
    """

    uid: str
    kind: GroupVersionKind
    operation: Operation
    name: str = ""
    namespace: str = ""
    sub_resource: str = ""
    object: msgspec.Raw = msgspec.Raw(b"null")
    old_object: msgspec.Raw = msgspec.Raw(b"null")


class StatusCause(_Wire, frozen=True):
    """One field of which something is wrong."""

    reason: str
    message: str
    field: str


class StatusDetails(_Wire, frozen=True):
    """The object that a status is about; kubectl prints the causes line by line."""

    name: str
    group: str
    kind: str
    causes: list[StatusCause] = []


class Status(_Wire, frozen=True, omit_defaults=False):
    """Why something was refused."""

    message: str
    reason: str
    code: int
    details: StatusDetails
    status: str = "Failure"


class AdmissionResponse(_Wire, frozen=True, kw_only=True):
    """The answer.

    Attributes:
        uid: of the question.
        allowed: the object may be stored.
        status: why not.
        warnings: shown to whoever asked, one line each.
    """

    uid: str
    allowed: bool = msgspec.field()
    status: Status | msgspec.UnsetType = msgspec.UNSET
    warnings: list[str] = []


class AdmissionReview(_Wire, frozen=True, omit_defaults=False):
    """The envelope of an answer."""

    response: AdmissionResponse
    api_version: str = API_VERSION
    kind: str = "AdmissionReview"


class AdmissionQuestion(_Wire, frozen=True):
    """The envelope of a question."""

    api_version: str
    kind: str
    request: AdmissionRequest
