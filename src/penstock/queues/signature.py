"""The parameters of a task: validation and encoding by senders, decoding by workers.

A task's arguments are sent as a JSON array and a JSON object. Parameters of `Depends` and those
annotated with `JobContext` are not sent: the worker supplies them.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Optional, cast, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Raw

from penstock.delivery.injected import injected_parameters
from penstock.errors import ConfigError, DecodeError, InvalidJob
from penstock.queues.worker.job_context import JobContext
from penstock.redis.codec import json_rules

__all__ = [
    "NO_ARGS",
    "NO_KWARGS",
    "Signature",
    "encode_value",
    "result_type_of",
    "task_name_of",
]

NO_ARGS: Final = b"[]"
NO_KWARGS: Final = b"{}"
_NO_KWARGS: Final = Raw(NO_KWARGS)
_COLON: Final = ord(":")  # a number is found quicker than a text
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_split_array = msgspec.json.Decoder(list[Raw]).decode
_split_object = msgspec.json.Decoder(dict[str, Raw]).decode
_encode_json, _is_finite = json_rules.encode_json, json_rules.is_finite
_encode_plain, _repeats_a_member = msgspec.json.Encoder().encode, json_rules.repeats_a_member
_NEVER_TOO_DEEP = json_rules.NEVER_TOO_DEEP
# Decoders of whole argument lists, by their number; beyond it they are read one by one.
_MOST_TOGETHER: Final = 32


def encode_value(value: Any) -> bytes:
    """Return a value as JSON; InvalidJob if it cannot be encoded."""
    try:
        data = _encode_json(value)
    except Exception as error:  # noqa: BLE001  a model's own code may run
        raise InvalidJob(f"arguments: {json_rules.encode_reason(error)}") from None
    if len(data) > _NEVER_TOO_DEEP and json_rules.nests_too_deep(data):
        raise InvalidJob(f"arguments: they nest deeper than {json_rules.MAX_NESTING}")
    # msgspec writes NaN as null
    if data.rfind(b"null") >= 0 and not _is_finite(value):
        raise InvalidJob("arguments: they hold NaN or an infinite number")
    return data


class Signature:
    """Signature of a task's function, for its senders and its workers."""

    def __init__(self, function: Callable[..., Any], name: str) -> None:
        self.name = name
        self._code = _code_of(function)
        try:
            whole = inspect.signature(function)
        except (TypeError, ValueError) as error:
            raise ConfigError(f"task {name}: {error}") from None
        if inspect.isgeneratorfunction(self._code) or inspect.isasyncgenfunction(self._code):
            raise ConfigError(f"task {name} yields: its body would never run")
        hints = _hints(self._code, name)
        made = injected_parameters(function)
        contexts = [one for one in whole.parameters.values() if _is_context(hints.get(one.name))]
        if len(contexts) > 1 or any(one.kind is one.POSITIONAL_ONLY for one in contexts):
            raise ConfigError(f"task {name}: one parameter may be a JobContext, and needs a name")
        self.context: str | None = contexts[0].name if contexts else None
        """The parameter that gets the `JobContext`."""
        self.injected: frozenset[str] = made
        """Parameters that `Depends` makes."""
        self.result_type: Any = hints.get("return", Any)
        self.is_async = inspect.iscoroutinefunction(self._code)
        left_out = made | {one.name for one in contexts}
        self.sent = whole.replace(
            parameters=[one for one in whole.parameters.values() if one.name not in left_out]
        )
        """The parameters whose values travel with the job."""
        self._read_parameters(whole, hints, left_out)

    def _read_parameters(
        self, whole: inspect.Signature, hints: Mapping[str, Any], left_out: frozenset[str]
    ) -> None:
        self._names: list[str] = []
        self._types: list[Any] = []
        self._rest_type: Any = None
        self._needed = 0
        self._keywords_needed = self._takes_rest = False
        self._decoders: dict[str, Callable[[bytes], Any]] = {}
        self._extra: Callable[[bytes], Any] | None = None
        self._in_place: int | None = None
        """Number of values before the first parameter that the worker supplies."""
        for parameter in whole.parameters.values():
            if parameter.name not in left_out:
                self._read_parameter(parameter, hints.get(parameter.name, Any))
            elif parameter.kind in _POSITIONAL and self._in_place is None:
                self._in_place = len(self._names)
        self._alone = [self._decoder(*pair) for pair in zip(self._names, self._types, strict=True)]
        self._rest = self._decoder("*", self._rest_type) if self._takes_rest else None
        self._together: dict[int, Callable[[bytes], tuple[Any, ...]]] = {}
        self._usual = len(self._names)
        self._read_usual: Callable[[bytes], tuple[Any, ...]] | None = None

    def _read_parameter(self, parameter: inspect.Parameter, type_: Any) -> None:
        kind, name = parameter.kind, parameter.name
        by_place_alone = kind in {parameter.POSITIONAL_ONLY, parameter.VAR_POSITIONAL}
        if by_place_alone and self._in_place is not None:
            raise ConfigError(
                f"task {self.name}: {name} cannot follow a parameter that the worker supplies; "
                "put that one last"
            )
        if kind is parameter.VAR_POSITIONAL:
            self._takes_rest, self._rest_type = True, type_
            return
        if kind is parameter.VAR_KEYWORD:
            self._extra = self._decoder(name, type_)
            return
        if kind in _POSITIONAL:
            self._names.append(name)
            self._types.append(type_)
        if not by_place_alone:
            self._decoders[name] = self._decoder(name, type_)
        if parameter.default is parameter.empty:
            if kind in _POSITIONAL:
                self._needed = len(self._names)
            else:
                self._keywords_needed = True

    def first_type(self, default: Any) -> Any:
        """Annotation of the first parameter that is sent; `default` if it has none."""
        kinds = [*self._types, self._rest_type]
        return default if kinds[0] is None or kinds[0] is Any else kinds[0]

    # ---- sending

    def check(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Raise InvalidJob unless the function could be called so."""
        count = len(args)
        if (
            not kwargs
            and not self._keywords_needed
            and count >= self._needed
            and (count <= len(self._names) or self._takes_rest)
        ):
            return
        try:
            self.sent.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidJob(f"task {self.name}: {error}") from None

    def encode(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[bytes, bytes]:
        """Return both as JSON; InvalidJob if the function could not be called with them."""
        self.check(args, kwargs)
        return (
            encode_value(args) if args else NO_ARGS,
            encode_value(kwargs) if kwargs else NO_KWARGS,
        )

    # ---- receiving

    def misfit(self, args: Raw | bytes, kwargs: Raw | bytes) -> str:
        """Why the function cannot be called with so many values, or of these names; '' if it can.

        A program of another version has sent them, most likely. Their types are not looked at.
        """
        try:
            count, names = len(_split_array(bytes(args))), _split_object(bytes(kwargs))
        except (msgspec.MsgspecError, ValueError, RecursionError):
            return ""
        try:
            self.sent.bind(*[None] * count, **dict.fromkeys(names))
        except TypeError as error:
            return str(error)
        return ""

    def decode(
        self, args: Raw | bytes, kwargs: Raw | bytes
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return what to call the function with, beside what is handed in; or DecodeError.

        Each value is checked against its parameter's annotation.
        """
        args = bytes(args)
        if self._read_usual is not None and kwargs == _NO_KWARGS and len(args) <= _NEVER_TOO_DEEP:
            values = self._decode_usual(args)
            if values is not None:
                return values, {}
        kwargs = bytes(kwargs)
        try:
            values = () if args == NO_ARGS else self._decode_args(args)
            named = {} if kwargs == NO_KWARGS else self._decode_kwargs(kwargs)
        except DecodeError:
            raise
        except Exception as error:  # noqa: BLE001  a type's own checks may run
            raise self._unreadable(json_rules.decode_reason(error), args) from None
        if _repeats_a_member(args) or _repeats_a_member(kwargs):
            raise self._unreadable("an object in them has two members of one name", args)
        try:
            self.check(values, named)
        except InvalidJob as error:
            raise DecodeError(str(error), args) from None
        split = self._in_place
        if split is not None and len(values) > split:
            named.update(zip(self._names[split:], values[split:], strict=False))
            values = values[:split]
        return values, named

    def _decode_usual(self, data: bytes) -> tuple[Any, ...] | None:
        """Values of a usual call, quickly; None if it is another one, or at fault."""
        try:
            values = cast("Callable[[bytes], tuple[Any, ...]]", self._read_usual)(data)
        except Exception:  # noqa: BLE001  as in `decode`, which says what is wrong
            return None
        try:
            # What is written as it was read has no two members of one name.
            same = _COLON not in data or _encode_plain(values) == data
        except Exception:  # noqa: BLE001  there are models, with code of their own
            self._read_usual = None
            return None
        return values if same or not _repeats_a_member(data) else None

    def _decode_args(self, data: bytes) -> tuple[Any, ...]:
        if len(data) > _NEVER_TOO_DEEP and json_rules.nests_too_deep(data):
            raise self._unreadable(f"JSON nests deeper than {json_rules.MAX_NESTING}", data)
        # Most jobs of a task have the same number of arguments.
        usual = self._together.get(self._usual)
        if usual is not None:
            try:
                return usual(data)
            except msgspec.ValidationError:
                pass
        each = _split_array(data)
        count = len(each)
        if count > len(self._names) and not self._takes_rest:
            expected = f"{len(self._names)} arguments at most, {count} came"
            raise self._unreadable(expected, data)
        if count <= _MOST_TOGETHER:
            self._usual, decode = count, self._decoder_of(count)
            values = decode(data)
            takes_all = count >= self._needed and not self._keywords_needed
            self._read_usual = decode if takes_all and self._in_place is None else None
            return values
        assert self._rest is not None or count <= len(self._names)  # noqa: S101
        readers = [*self._alone, *([self._rest] * (count - len(self._alone)))]
        return tuple(
            cast("Callable[[bytes], Any]", reader)(bytes(one))
            for reader, one in zip(readers, each, strict=False)
        )

    def _decoder_of(self, count: int) -> Callable[[bytes], tuple[Any, ...]]:
        decode = self._together.get(count)
        if decode is None:
            rest = [self._rest_type] * max(0, count - len(self._types))
            kinds = tuple(_plain(kind) for kind in (*self._types[:count], *rest))
            decode = json_rules.json_decoder(tuple[kinds]).decode
            self._together[count] = decode
        return decode

    def _decode_kwargs(self, data: bytes) -> dict[str, Any]:
        if len(data) > _NEVER_TOO_DEEP and json_rules.nests_too_deep(data):
            raise self._unreadable(f"JSON nests deeper than {json_rules.MAX_NESTING}", data)
        named = dict[str, Any]()
        for name, one in _split_object(data).items():
            decode = self._decoders.get(name) or self._extra
            if decode is None:
                raise self._unreadable("an argument of a name that it does not take", data)
            named[name] = decode(bytes(one))
        return named

    def _decoder(self, name: str, type_: Any) -> Callable[[bytes], Any]:
        try:
            return json_rules.json_decoder(_plain(type_)).decode
        except TypeError as error:
            raise ConfigError(f"task {self.name}, parameter {name}: {error}") from None

    def _unreadable(self, reason: str, data: bytes) -> DecodeError:
        return DecodeError(f"cannot read the arguments of {self.name}: {reason}", data)


def _plain(type_: Any) -> Any:
    return Any if type_ is inspect.Parameter.empty else type_


def result_type_of(type_: Any) -> Any:
    """Return the type that a stored result is read as: JSON always, also for text and bytes."""
    return Optional[type_]  # noqa: UP045  `str | None` fails for a type given as text


def task_name_of(function: Callable[..., Any]) -> str:
    """Return the default name of a function's task: its module and its own name.

    A module that was started as a program is named as if it were imported, because the worker
    imports it.
    """
    code = function.func if isinstance(function, functools.partial) else function
    module = getattr(code, "__module__", None) or "tasks"
    if module == "__main__":
        main = sys.modules["__main__"]
        spec, path = getattr(main, "__spec__", None), getattr(main, "__file__", None)
        module = spec.name if spec is not None else Path(path).stem if path else module
    own = getattr(code, "__qualname__", None) or type(code).__qualname__
    return f"{module}.{own.rpartition('<locals>.')[2]}"


def _is_context(type_: Any) -> bool:
    if get_origin(type_) is Annotated:
        type_ = get_args(type_)[0]
    return type_ is JobContext or (type_ is not None and JobContext in get_args(type_))


def _hints(code: Callable[..., Any], name: str) -> dict[str, Any]:
    try:
        return get_type_hints(code, include_extras=True)
    except (NameError, TypeError) as error:
        given = {
            key: value
            for key, value in getattr(code, "__annotations__", {}).items()
            if not isinstance(value, str)
        }
        if len(given) == len(getattr(code, "__annotations__", {})):
            return given
        raise ConfigError(
            f"task {name}: its annotations cannot be read ({error}); declare the types at module "
            "level, and not only for type checkers"
        ) from None


def _code_of(function: Callable[..., Any]) -> Callable[..., Any]:
    """Function with the annotations: inside a partial, or `__call__` of an object's class."""
    while isinstance(function, functools.partial):
        function = cast("Callable[..., Any]", function.func)
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__
