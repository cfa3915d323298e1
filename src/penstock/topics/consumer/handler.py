"""A user's function as a message handler: what it takes, and what it returned."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args, get_origin, get_type_hints

from penstock.errors import ConfigError
from penstock.topics.message import Message

__all__ = ["Failures", "Handler", "as_handler", "failures_in"]

Failures = Mapping[Message, Exception]
"""What a batch handler may return: the messages that failed, and how."""

_ONE, _TWO = 1, 2
# No set: an annotation need not be hashable.
_MAY_BE_MESSAGES = (Message, Any, inspect.Parameter.empty)


@dataclass(frozen=True, slots=True)
class Handler:
    """How to call a user's function with a message, or with a list of messages."""

    name: str
    invoke: Callable[[Any], Any]
    """Takes a `Message` (a list of them for a batch handler); what comes back is awaited if the
    handler is asynchronous."""
    direct: Callable[[Any], Any] | None
    """The function itself if it takes payloads alone: then no `Message` need be made for it."""
    is_async: bool
    payload_type: Any


def as_handler(function: Callable[..., Any], *, batch: bool, default_type: Any) -> Handler:
    """Inspect a function's parameters and decide what it gets.

    One parameter: the payload, or the message if it is annotated as `Message`. Two: payload and
    message. For a batch handler each is a list.
    """
    name = getattr(function, "__qualname__", None) or repr(function)
    parameters = _positional(function, name)
    kinds = [_annotation(function, parameter, batch=batch) for parameter in parameters]
    _check_kinds(name, kinds)
    payload_type = default_type
    direct = None
    if kinds[0] is Message and len(kinds) == _ONE:
        invoke = function
    else:
        if kinds[0] is not inspect.Parameter.empty:
            payload_type = kinds[0]
        invoke = _with_payload(function, both=len(kinds) == _TWO, batch=batch)
        direct = function if len(kinds) == _ONE else None
    return Handler(name, invoke, direct, _is_async(function), payload_type)


def _with_payload(function: Callable[..., Any], *, both: bool, batch: bool) -> Callable[[Any], Any]:
    if batch:

        def take_list(messages: Sequence[Message]) -> Any:
            payloads = [message.payload for message in messages]
            return function(payloads, messages) if both else function(payloads)

        return take_list
    if both:
        return lambda message: function(message.payload, message)
    return lambda message: function(message.payload)


def _positional(function: Callable[..., Any], name: str) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"handler {name}: {error}") from None
    code = _code_of(function)
    if inspect.isgeneratorfunction(code) or inspect.isasyncgenfunction(code):
        raise ConfigError(f"handler {name} yields: its body would never run")
    parameters = list[inspect.Parameter]()
    for parameter in signature.parameters.values():
        if parameter.kind in {parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD}:
            parameters.append(parameter)
        elif parameter.kind is parameter.KEYWORD_ONLY and parameter.default is parameter.empty:
            raise ConfigError(
                f"handler {name}: required keyword argument {parameter.name!r} is never passed"
            )
    wanted = [parameter for parameter in parameters if parameter.default is parameter.empty]
    if not _ONE <= len(wanted) <= _TWO:
        raise ConfigError(
            f"handler {name} takes {len(wanted)} arguments: expected (payload), (message) or "
            "(payload, message)"
        )
    return wanted


def _check_kinds(name: str, kinds: list[Any]) -> None:
    if len(kinds) == _TWO and (kinds[0] is Message or kinds[1] not in _MAY_BE_MESSAGES):
        raise ConfigError(f"handler {name}: of two arguments the second is the message")


def _annotation(function: Callable[..., Any], parameter: inspect.Parameter, *, batch: bool) -> Any:
    try:
        hints = get_type_hints(_code_of(function), include_extras=True)
    except (NameError, TypeError) as error:
        # Types declared inside a function cannot be looked up by their names.
        if isinstance(parameter.annotation, str):
            raise ConfigError(
                f"handler {function!r}: annotation {parameter.annotation!r} cannot be read "
                f"({error}); give the topic its type, or declare the type at module level"
            ) from None
        hints = {parameter.name: parameter.annotation}
    kind = hints.get(parameter.name, inspect.Parameter.empty)
    if not batch or kind is inspect.Parameter.empty:
        return kind
    if kind in {list, Sequence}:
        return inspect.Parameter.empty
    if get_origin(kind) not in {list, Sequence}:
        raise ConfigError(f"batch handler {function!r}: {parameter.name} has to be a list[…]")
    return get_args(kind)[0]


def _is_async(function: Callable[..., Any]) -> bool:
    return inspect.iscoroutinefunction(_code_of(function))


def _code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Where annotations and `async` stand: within a partial, or in the class of an object."""
    while isinstance(function, functools.partial):
        function = cast("Callable[..., Any]", function.func)
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__


def failures_in(outcome: object, messages: Sequence[Message]) -> Mapping[Message, Exception]:
    """Return the messages of a batch that failed, by what its handler returned.

    What cannot be understood fails the whole batch: to acknowledge it could lose messages.
    """
    if outcome is None:
        return {}
    if isinstance(outcome, Exception):
        return dict.fromkeys(messages, outcome)
    result: Any = outcome
    if isinstance(result, Mapping):
        failed = {
            message: error
            for message, error in cast("Mapping[Any, Any]", result).items()
            if error is not None
        }
        if failed.keys() <= set(messages) and all(
            isinstance(error, Exception) for error in failed.values()
        ):
            return failed
    wrong = ConfigError(
        f"a batch handler returned {_shortened(outcome)}: expected None, Retry, DeadLetter, or a "
        "mapping from messages of the batch to how they failed"
    )
    return dict.fromkeys(messages, wrong)


def _shortened(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:99]}…"  # noqa: PLR2004  enough to know it again
