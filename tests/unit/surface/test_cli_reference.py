"""The command line's page names every command, option and exit code, and no others."""

import re
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from penstock.interfaces.cli.main import COMMANDS, cli, main
from penstock.interfaces.cli.output import ExitCode

SOURCES = Path(main.__code__.co_filename).parent
PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()


def commands(command=cli, path=("penstock",)):
    """Every command of the tree with its full name."""
    yield " ".join(path), command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            yield from commands(command.get_command(context, name), (*path, name))


def section(name):
    found = re.search(rf"^## `{name}`\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert found, f"no section for {name}"
    return found[1]


ALL = dict(commands())


def test_the_page_has_a_section_for_each_command_and_no_other():
    assert sorted(re.findall(r"^## `(.+)`$", PAGE, re.MULTILINE)) == sorted(ALL)


def test_the_list_of_commands_is_printed_without_importing_them(monkeypatch):
    monkeypatch.setattr("penstock.interfaces.cli.main.import_module", None)
    listed = CliRunner().invoke(cli, ["--help"], terminal_width=80).output
    for name, (_, summary) in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(summary)}$", listed, re.MULTILINE), name


@pytest.mark.parametrize("name", ALL)
def test_a_command_has_help_and_its_section_has_every_option(name):
    command = ALL[name]
    assert command.help
    rows = re.findall(r"^\| (`.+?) \|", section(name), re.MULTILINE)
    documented = {part.strip("` ") for row in rows for part in row.split(", ")}
    context = click.Context(command, **command.context_settings)
    expected = set()
    for parameter in command.get_params(context):
        if isinstance(parameter, click.Option):
            assert parameter.help, f"{name} {parameter.name}"
            expected |= set(parameter.opts)
        else:
            expected.add(parameter.make_metavar(context))
    if name != "penstock":
        expected -= {"--help", "-h"}  # said once, for all
    assert documented == expected


@pytest.mark.parametrize(
    "name", [name for name, c in ALL.items() if not isinstance(c, click.Group)]
)
def test_every_command_can_speak_json(name):
    assert any("--json" in parameter.opts for parameter in ALL[name].params)


def test_the_page_lists_every_exit_code():
    rows = re.findall(r"^\| `(\d+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert {name: int(code) for code, name in rows} == {code.name: code.value for code in ExitCode}


def test_the_help_names_every_exit_code():
    help_text = " ".join((cli.help or "").split())
    for code in ExitCode:
        assert re.search(rf"\b{code.value} \w", help_text), code


def test_commands_leave_talking_to_the_server_to_the_admin_apis():
    own = re.compile(r"(?<!penstock)\.(redis|client)\.(call|pipeline|keys|scripts)\b")
    assert [path.name for path in SOURCES.rglob("*.py") if own.search(path.read_text())] == []


@pytest.mark.parametrize(
    "name", [name for name, c in ALL.items() if not isinstance(c, click.Group)]
)
def test_the_help_of_a_command_has_an_example(name):
    options = "(?: --url [^ ]+)?"
    assert re.search(name.replace(" ", f"{options} ", 1), ALL[name].help.replace("\n", " "))
