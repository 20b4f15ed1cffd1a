"""Device selectors: expressions in the Common Expression Language, on a device as Kubernetes shows it to them.

The library is Google's cel-cpp. What Kubernetes adds is added here: quantities, semantic versions, `includes`, `sets`,
and that a domain which a device does not have is an empty map. Not there: `ip`, `cidr`, `url`, `format`, `find`, the
list functions besides `includes`, and the limit on cost; a selector that uses one of them does not compile here.
Source: k8s.io/dynamic-resource-allocation v0.37 cel/compile.go; k8s.io/apiserver pkg/cel/library.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from dra_gpu.api.resource_v1 import Device, DeviceAttribute
from dra_gpu.scheduler.amount import Amount
from dra_gpu.scheduler.cel_functions import FUNCTIONS, quantity_value, version_value
from dra_gpu.scheduler.model import Candidate
from dra_gpu.scheduler.semver import InvalidVersionError

MAX_LENGTH = 10 * 1024
# Compiled selectors that are kept.
_KEPT = 256

# Looking something up in `device.attributes` must find an empty map for an unknown domain, while `in` and the macros
# must see the domains that are there. So look-ups go to a second variable, whose maps hold the unknown domains too.
_COMPLETED = "_device"
_STRING = r"""[rRbB]{0,2}(?:\"{3}[\s\S]*?\"{3}|'{3}[\s\S]*?'{3}|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*')"""
_LOOK_UP = r"(?<![\w.])device(?=\s*\.\s*(?:attributes|capacity)\s*(?:\[|\.\s*\??\s*[A-Za-z_]\w*(?![\w(]|\s+\()))"
_TOKENS = re.compile(rf"(?P<string>{_STRING})|(?P<comment>//[^\n]*)|(?P<lookup>{_LOOK_UP})")


class SelectorError(ValueError):
    """A selector cannot be used: the scheduler gives up on the pod until it is corrected."""


class CompileError(SelectorError):
    """The text is not an expression with a boolean result."""


class EvaluationError(SelectorError):
    """An expression failed on a device, most often for an attribute that the device does not have."""


@dataclass(slots=True, eq=False)
class _Compiled:
    program: Any
    domains: frozenset[str]


class Evaluator:
    """Evaluates selectors on devices, and keeps what it saw of them for as long as it lives (they must not change)."""

    def __init__(self) -> None:
        self._activations: dict[tuple[str, str, str, frozenset[str]], Any] = {}

    def matches(self, expression: str, candidate: Candidate) -> bool:
        """Tell whether a device satisfies a selector.

        Raises:
            CompileError: the selector is no expression, or one that this evaluator does not know.
            EvaluationError: it fails on this device.
        """
        from cel_expr_python import cel

        compiled = _compile(expression)
        result = compiled.program.eval(self._activation(candidate, compiled.domains))
        if result.type() == cel.Type.BOOL:
            return bool(result.plain_value())
        if result.type() == cel.Type.ERROR:
            raise EvaluationError(_hint(str(result.value())))
        raise EvaluationError(f"the result is a {result.type()}, not a bool")

    def _activation(self, candidate: Candidate, domains: frozenset[str]) -> Any:
        key = (*candidate.id, domains)
        if key not in self._activations:
            seen = variables(candidate.id.driver, candidate.device)
            completed = dict(seen)
            for name in ("attributes", "capacity"):
                completed[name] = {domain: {} for domain in (*domains, candidate.id.driver)} | seen[name]
            self._activations[key] = _environment().Activation({"device": seen, _COMPLETED: completed})
        return self._activations[key]


@cache
def _environment() -> Any:
    """Return what all expressions are compiled in."""
    from cel_expr_python import cel
    from cel_expr_python.ext import ext_bindings, ext_optional, ext_strings

    types = {
        "list": cel.Type.List(cel.Type.DYN),
        "map": cel.Type.Map(cel.Type.STRING, cel.Type.DYN),
    }

    def type_of(name: str) -> Any:
        return types.get(name) or getattr(cel.Type, name.upper())

    return cel.NewEnv(
        variables={"device": cel.Type.DYN, _COMPLETED: cel.Type.DYN},
        extensions=[ext_bindings.ExtBindings(), ext_optional.ExtOptional(), ext_strings.ExtStrings()],
        functions=[
            cel.FunctionDecl(
                name,
                [
                    cel.Overload(
                        f"{name}_{number}",
                        type_of(overload.result),
                        [type_of(parameter) for parameter in overload.parameters],
                        overload.member,
                        overload.function,
                    )
                    for number, overload in enumerate(overloads)
                ],
            )
            for name, overloads in FUNCTIONS.items()
        ],
    )


@lru_cache(maxsize=_KEPT)
def _compile(expression: str) -> _Compiled:
    """Compile a selector; most claims have the same few.

    Raises:
        CompileError: it is no expression with a boolean result.
    """
    from cel_expr_python import cel

    if len(expression.encode()) > MAX_LENGTH:
        raise CompileError(f"the expression is longer than {MAX_LENGTH} bytes")
    try:
        program = _environment().compile(_TOKENS.sub(_redirect, expression))
    except RuntimeError as error:  # the library has no type of its own for it
        raise CompileError(_first_problem(str(error))) from error
    if program.return_type() not in (cel.Type.BOOL, cel.Type.DYN):
        raise CompileError(f"must evaluate to bool, not {program.return_type()}")
    strings = (match["string"] for match in _TOKENS.finditer(expression))
    return _Compiled(program, frozenset(text.lstrip("rRbB").strip("\"'") for text in strings if text))


def variables(driver: str, device: Device) -> dict[str, Any]:
    """Return what a selector sees as `device`.

    Raises:
        EvaluationError: an attribute has no value, or a version that is none.
    """
    return {
        "driver": driver,
        "allowMultipleAllocations": device.allow_multiple_allocations is True,
        "attributes": _by_domain(
            driver, ((name, _attribute(name, value)) for name, value in device.attributes.items())
        ),
        "capacity": _by_domain(
            driver, ((name, quantity_value(Amount.parse(value.value))) for name, value in device.capacity.items())
        ),
    }


def _by_domain(driver: str, values: Iterable[tuple[str, Any]]) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for name, value in values:
        domain, separator, identifier = name.partition("/")
        if separator:
            found.setdefault(domain, {})[identifier] = value
        else:
            found.setdefault(driver, {})[name] = value
    return found


def _attribute(name: str, attribute: DeviceAttribute) -> Any:
    if attribute.version is not None:
        try:
            return version_value(attribute.version)
        except InvalidVersionError as error:
            raise EvaluationError(f"attribute {name}: {error}") from error
    known = (attribute.ints, attribute.strings, attribute.int_, attribute.bool_, attribute.string)
    value = next((value for value in known if value is not None), None)
    if value is None:
        raise EvaluationError(f"attribute {name}: unsupported attribute value")
    return value


def _redirect(match: re.Match[str]) -> str:
    return _COMPLETED if match["lookup"] else match[0]


def _first_problem(message: str) -> str:
    line = message.split("ERROR: ", 1)[-1].splitlines()[0]
    return line.removeprefix("<input>:").removesuffix(" (in container '')").replace(_COMPLETED, "device")


def _hint(message: str) -> str:
    problem = message.replace(_COMPLETED, "device")
    if "Key not found" in problem:
        return f"{problem}; write .?name.orValue(…) or has(…) for what a device may lack"
    return problem
