"""YAML of configuration files: one mapping of plain values, without anchors and tags."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any, Final

import yaml

__all__ = ["LARGEST", "ConfigFileUnreadable", "read_yaml"]

LARGEST: Final = 1024 * 1024
"""Maximum bytes of a configuration file."""
DEEPEST: Final = 20
"""Maximum nesting of lists and mappings."""
MOST: Final = 10_000
"""Maximum values, keys included: a megabyte of them takes 15 seconds to read."""


class ConfigFileUnreadable(Exception):
    """A file that cannot be read as configuration, with line and reason."""


def read_yaml(path: Path) -> dict[str, Any]:
    """The fields of a file; ConfigFileUnreadable unless it is one mapping with unique keys.

    Keys are texts as written. Dates stay texts; anchors, aliases, merges and tags of Python objects
    are refused, as a few bytes of them can expand to gigabytes, or run programs.
    """
    text = _text(path)
    loader: Any = None
    try:
        loader = _Loader(text)
        node: Any = loader.get_single_node()
        if node is None:
            raise ConfigFileUnreadable("the file is empty")
        if not isinstance(node, yaml.MappingNode):
            raise ConfigFileUnreadable(
                f"expected fields with values, as `name: value`, not {_KINDS[node.id]}"
            )
        return _mapping(node, loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise ConfigFileUnreadable(
            f"line {mark.line + 1 if mark else 1}: {_problem_of(error)}"
        ) from None
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ConfigFileUnreadable(f"line {line}: a character that YAML does not allow") from None
    finally:
        if loader is not None:
            loader.dispose()  # breaks its references to itself


def _text(path: Path) -> str:
    try:
        # Opening a pipe would wait for its other end.
        if not stat.S_ISREG(path.stat().st_mode):
            raise ConfigFileUnreadable("not a file")
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
    except OSError as error:
        raise ConfigFileUnreadable(error.strerror or str(error)) from None
    if len(content) > LARGEST:
        raise ConfigFileUnreadable(f"the file is too large: expected at most {LARGEST:,} bytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigFileUnreadable(f"line {line}: not UTF-8") from None


class _Loader(yaml.SafeLoader):
    depth = 0
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        events: Any = self
        event: Any = events.peek_event()
        if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None) is not None:
            raise _at(event.start_mark, "anchors and aliases (&, *) are not taken")
        if self.depth >= DEEPEST:
            raise _at(event.start_mark, f"nested more than {DEEPEST} levels deep")
        if self.nodes >= MOST:
            raise _at(event.start_mark, f"expected at most {MOST:,} values in a file")
        self.depth += 1
        self.nodes += 1
        try:
            return super().compose_node(parent, index)
        finally:
            self.depth -= 1


# Dates stay texts: no field is a date, and `2024-01-01` is a valid description.
_Loader.yaml_implicit_resolvers = {
    first: [pair for pair in pairs if pair[0] != "tag:yaml.org,2002:timestamp"]
    for first, pairs in yaml.SafeLoader.yaml_implicit_resolvers.items()
}

_KINDS = {"scalar": "a single value", "sequence": "a list"}


def _mapping(node: yaml.MappingNode, loader: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        mark = key_node.start_mark
        if not isinstance(key_node, yaml.ScalarNode):
            raise _at(mark, "expected a name before the colon")
        key: str = key_node.value
        if key_node.tag == "tag:yaml.org,2002:merge":
            raise _at(mark, "merging with << is not taken")
        if key in found:
            raise _at(mark, f"{key!r} stands here a second time, first in line {lines[key]}")
        lines[key] = mark.line + 1
        found[key] = _value(value_node, loader)
    return found


def _value(node: Any, loader: Any) -> Any:
    if isinstance(node, yaml.MappingNode):
        return _mapping(node, loader)
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, loader) for item in node.value]
    try:
        return loader.construct_object(node)
    except ValueError as error:  # a number of more digits than Python reads
        raise _at(node.start_mark, str(error)) from None


def _at(mark: Any, problem: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=problem, problem_mark=mark)


def _problem_of(error: yaml.MarkedYAMLError) -> str:
    problem = error.problem or "not valid YAML"
    if r"'\t'" in problem:
        return "a tab; expected spaces"
    if error.context == "expected a single document in the stream":
        return "a second document begins here; expected one in a file"
    return f"not valid YAML: {problem}" if type(error) is not yaml.MarkedYAMLError else problem
