"""What the API server refuses, as a person at a shell is told. Pure.

The remedies of `apiserver.errors` are those of the driver's programs, which have a ServiceAccount and try again.
"""

from collections.abc import Mapping

from dra_gpu.apiserver import errors

_REMEDIES: Mapping[type, str] = {
    errors.ForbiddenError: "ask who administers the cluster for this right",
    errors.UnauthorizedError: "log in again, or check the credentials in the kubeconfig",
    errors.UnavailableError: "check that the API server runs and is reachable from here, and try again",
    errors.TooManyRequestsError: "try again later",
    errors.AlreadyExistsError: errors.AlreadyExistsError.remedy,
    errors.ConflictError: "try again",
    errors.GoneError: "try again",
    errors.LineTooLongError: "find the object that is larger than etcd allows",
    errors.UnreadableAnswerError: "see what stands between this machine and the API server",
}


def told(error: Exception) -> str:
    """Return the message of an error for a person; of others than the API server's it is their own."""
    if not isinstance(error, errors.ApiError):
        return str(error)
    kind = next((kind for kind in type(error).__mro__ if kind in _REMEDIES), None)
    return str(error) if kind is None else str(error).removesuffix(error.remedy) + _REMEDIES[kind]
