"""Injected parameters of a function, read once from its signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal, cast, get_args, get_origin, get_type_hints
from weakref import WeakKeyDictionary

from penstock.errors import ConfigError

__all__ = [
    "INJECTED",
    "Dependency",
    "Depends",
    "Provider",
    "Scope",
    "code_of",
    "injected_parameters",
    "name_of",
    "needs_injection",
    "plan_of",
]

Scope = Literal["job", "worker"]
SCOPES: Final[tuple[Scope, ...]] = get_args(Scope)
Provider = Callable[..., Any]


class _Injected:
    """Type of `INJECTED`."""

    def __repr__(self) -> str:
        return "INJECTED"


INJECTED: Any = _Injected()
"""Placeholder default of an injected parameter, so that callers may omit it."""


@dataclass(frozen=True, slots=True)
class Dependency:
    """The provider of a parameter."""

    provider: Provider
    scope: Scope


def Depends(provider: Provider, *, scope: Scope = "job") -> Any:  # noqa: N802  it reads as a mark
    """Mark a parameter as made by `provider`, a function that may have such parameters itself.

        db: Annotated[Db, Depends(get_db)] = INJECTED
        db: Db = Depends(get_db)                          # the same

    - A provider returns the value, or yields it and cleans up after the `yield`. It may be async;
      one that is not runs in a thread, so it may block.
    - It is called once for a job, however many parameters name it; with `scope="worker"` once for
      the worker, whose jobs share the value.
    - If the job fails, its error is raised at the `yield`, innermost first, so that a transaction
      can roll back. A clean-up that fails after a good job (a commit, perhaps) fails the job.
    """
    if not callable(provider):
        raise ConfigError(f"Depends({provider!r}): expected a function that makes the value")
    try:
        hash(provider)
    except TypeError:
        raise ConfigError(f"Depends({provider!r}): a provider has to be hashable") from None
    if scope not in SCOPES:
        raise ConfigError(f"Depends: scope {scope!r} is not one of {', '.join(SCOPES)}")
    return Dependency(provider, scope)


def injected_parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Names of the parameters that are not sent; `ConfigError` if they could not be made."""
    return frozenset(name for name, _ in plan_of(function).parameters)


def needs_injection(function: Callable[..., Any]) -> bool:
    """Whether a function has such parameters at all."""
    return bool(plan_of(function).parameters)


@dataclass(frozen=True, slots=True)
class Plan:
    """The parameters of one function that are made for it."""

    parameters: tuple[tuple[str, Dependency], ...]


_plans: WeakKeyDictionary[Callable[..., Any], Plan] = WeakKeyDictionary()


def plan_of(function: Callable[..., Any]) -> Plan:
    try:
        plan = _plans.get(function)
    except TypeError:  # it cannot be hashed or referred to weakly
        return _checked_plan(function)
    if plan is None:
        plan = _checked_plan(function)
        _plans[function] = plan
    return plan


def _checked_plan(function: Callable[..., Any]) -> Plan:
    plan = Plan(tuple(_injected(function)))
    for _, dependency in plan.parameters:
        _check(dependency, (dependency,), function)
    return plan


def _check(dependency: Dependency, way: tuple[Dependency, ...], user: Callable[..., Any]) -> None:
    """Follow a dependency down, so that what cannot work fails before any job is sent."""
    provider = dependency.provider
    inner = _injected(provider)
    _check_rest(provider, {name for name, _ in inner})
    for name, needed in inner:
        if any(needed.provider == above.provider for above in way):
            circle = " → ".join(name_of(step.provider) for step in (*way, needed))
            raise ConfigError(f"{name_of(user)}: dependencies go in a circle: {circle}")
        if dependency.scope == "worker" and needed.scope == "job":
            raise ConfigError(
                f"{name_of(provider)} is kept for the worker but its {name!r} only for a job; "
                f"give that scope='worker' too"
            )
        _check(needed, (*way, needed), user)


def _check_rest(provider: Provider, injected: set[str]) -> None:
    for parameter in _parameters(provider):
        if (
            parameter.name not in injected
            and parameter.default is parameter.empty
            and parameter.kind not in {parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD}
        ):
            raise ConfigError(f"provider {name_of(provider)}: no value for {parameter.name!r}")


def _injected(function: Callable[..., Any]) -> list[tuple[str, Dependency]]:
    injected: list[tuple[str, Dependency]] = []
    hints: dict[str, Any] | None = None
    for parameter in _parameters(function):
        if hints is None:
            hints = _hints_of(function)
        marks = _marks(hints.get(parameter.name))
        default = _as_dependency(parameter.default, hints.get(parameter.name))
        if default is not None:
            marks.append(default)
        if parameter.default is INJECTED and not marks:
            raise ConfigError(
                f"{name_of(function)}: {parameter.name!r} is INJECTED, but its annotation "
                f"{parameter.annotation!r} names no Depends(…) that can be read here"
            )
        if len(marks) > 1:
            raise ConfigError(f"{name_of(function)}: {parameter.name!r} has {len(marks)} Depends")
        if marks and parameter.kind not in {
            parameter.POSITIONAL_OR_KEYWORD,
            parameter.KEYWORD_ONLY,
        }:
            raise ConfigError(
                f"{name_of(function)}: {parameter.name!r} is given by name, so it needs one"
            )
        injected += [(parameter.name, mark) for mark in marks]
    return injected


def _marks(annotation: Any) -> list[Dependency]:
    if get_origin(annotation) is not Annotated:
        return []
    kind, *marks = get_args(annotation)
    return [mark for each in marks if (mark := _as_dependency(each, kind)) is not None]


def _as_dependency(mark: Any, kind: Any) -> Dependency | None:
    """Read a mark; one of FastAPI counts too, so that views and tasks can share their aliases."""
    if isinstance(mark, Dependency):
        return mark
    if type(mark).__module__ == "fastapi.params" and hasattr(mark, "dependency"):
        return cast("Dependency", Depends(mark.dependency or kind))
    return None


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some built-in functions have no signature
        return []


def _hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    code = code_of(function)
    try:
        return get_type_hints(code, include_extras=True)
    except (NameError, TypeError, AttributeError):
        # Types declared inside a function cannot be looked up by their names: read what can be.
        hints: dict[str, Any] = {}
        for name, annotation in getattr(code, "__annotations__", {}).items():
            hints[name] = annotation
            if isinstance(annotation, str):
                hints[name] = _evaluated(annotation, getattr(code, "__globals__", {}))
        return hints


def _evaluated(annotation: str, names: dict[str, Any]) -> Any:
    try:
        return eval(annotation, names)  # noqa: S307  as typing.get_type_hints does
    except Exception as error:  # noqa: BLE001  any expression may fail
        if "Depends" in annotation:
            raise ConfigError(
                f"annotation {annotation!r} cannot be read ({error}); declare its names at "
                "module level"
            ) from None
        return annotation


def code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function that has the annotations and `async`: of a partial, a class or an object."""
    while isinstance(function, functools.partial):
        function = cast("Callable[..., Any]", function.func)
    if isinstance(function, type):
        return cast("Callable[..., Any]", function.__init__)
    return function if inspect.isroutine(function) else type(function).__call__


def name_of(function: Callable[..., Any]) -> str:
    return getattr(function, "__qualname__", None) or repr(function)
