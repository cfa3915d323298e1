"""Inline code of the documentation: each call of ours exists, with the arguments that are shown."""

import ast
import importlib
import inspect
import pkgutil
import re
import sys
from pathlib import Path
from typing import is_typeddict

import pytest

import penstock.coordination
import penstock.inspector
import penstock.queues
import penstock.redis
import penstock.testing
import penstock.topics
from penstock.delivery.depends import Overrides
from penstock.pipelines.documents import Documents
from penstock.stores.tables.port import Tables
from penstock.testing.cluster import ClusterProcess
from penstock.testing.sentinel import SentinelSetup
from penstock.testing.servers import ServerProcess

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^(```|~~~).*?^\1", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
CALL = re.compile(r"(?<![\w'\"/:-])([A-Za-z_.][\w.]*)\(")

PACKAGES = (
    *("penstock", "penstock.topics", "penstock.queues", "penstock.coordination"),
    *("penstock.inspector", "penstock.redis", "penstock.runtime", "penstock.errors"),
    *("penstock.settings", "penstock.pipelines.documents", "penstock.clock"),
    # Documented too, though no package exports their names.
    *("penstock.queues.task", "penstock.interfaces.asgi", "penstock.interfaces.fastapi"),
    *("penstock.interfaces.httpx", "penstock.interfaces.django"),
    *("penstock.stores.opening", "penstock.stores.tables.port"),
    *("penstock.stores.opening", "penstock.stores.files.folder"),
    *(f"penstock.testing.{one.name}" for one in pkgutil.iter_modules(penstock.testing.__path__)),
)
OTHERS = {
    *("bake", "datetime", "enqueue_job", "exit", "factory", "floorMod"),
    *("get_current_job", "getLogger", "hashCode", "make", "morning_report", "on_commit"),
    *("partial", "provider", "revoke", "send_with_options", "sleep", "timedelta"),
}
"""Functions of the reader, of Python and of other libraries."""
OF_OTHERS = {
    *("f.delay(…)", "Retry(max=4)", "raise Retry(defer=…)", "raise self.retry(countdown=30)"),
    *("raise Retry(delay=ms)", "raise Retry(defer=30)", "job.abort()"),
}
"""Calls of other libraries that have names of ours."""
FIXTURES = {
    "start_server": ServerProcess,
    "start_cluster": ClusterProcess,
    "start_sentinel": SentinelSetup,
}
"""Fixtures that take what these take."""
RECEIVERS = {
    "app": penstock.Penstock,
    "app.topics": penstock.topics.TopicAdmin,
    "app.queues": penstock.queues.QueueAdmin,
    "app.schedules": penstock.queues.Schedules,
    "app.repairs": penstock.inspector.Repairs,
    "app.runs": penstock.coordination.Runs,
    "app.marks": penstock.coordination.Once,
    "app.limits": penstock.coordination.LimitRegistry,
    "app.redis": penstock.redis.Client,
    "job": penstock.Job,
    "app.dependencies": Overrides,
    "tables": Tables,
    "documents": Documents,
}
"""Objects that have the same name on all pages."""


def page_id(page):
    return str(page.relative_to(ROOT))


def public_callables():
    """Functions and methods by name: what a call in the text may mean."""
    found = {}
    for name in PACKAGES:
        module = importlib.import_module(name)
        for public in getattr(module, "__all__", ()):
            value = getattr(module, public)
            if callable(value):
                found.setdefault(public, []).append(value)
            if inspect.isclass(value):
                for member in dir(value):
                    method = getattr(value, member)
                    if not member.startswith("_") and inspect.isroutine(method):
                        found.setdefault(member, []).append(method)
    return found


CALLABLES = public_callables()


def keywords_of(parameter):
    """Names that `**words: Unpack[SomeOptions]` allows; None if it takes any."""
    named = re.search(r"Unpack\[(\w+)\]", str(parameter.annotation))
    for module in list(sys.modules.values()) if named else ():
        options = getattr(module, named[1], None)
        if (getattr(module, "__name__", "").startswith("penstock")) and is_typeddict(options):
            return set(options.__annotations__)
    return None


class Accepted:
    """What a function takes."""

    def __init__(self, function):
        parameters = list(inspect.signature(function).parameters.values())
        if parameters and parameters[0].name in {"self", "cls"}:
            parameters = parameters[1:]
        self.names = [one.name for one in parameters]
        self.positional = [one for one in parameters if one.kind <= one.POSITIONAL_OR_KEYWORD]
        self.required = {
            one.name for one in parameters if one.default is one.empty and one.kind in {1, 3}
        }
        self.any_positional = any(one.kind is one.VAR_POSITIONAL for one in parameters)
        self.keywords = {one.name for one in parameters if one.kind in {1, 3}}
        self.any_keyword = False
        for one in parameters:
            if one.kind is one.VAR_KEYWORD:
                options = keywords_of(one)
                self.any_keyword |= options is None
                self.keywords |= options or set()

    def problem(self, call):
        """Why a call would be refused; "" if it would not. `…` stands for further arguments."""
        elided = any(is_elided(one) for one in call.args)
        given = [one.arg for one in call.keywords if one.arg]
        if (
            unknown := []
            if self.any_keyword
            else [name for name in given if name not in self.keywords]
        ):
            return f"takes no {', '.join(unknown)}"
        places = [one for one in call.args if not is_elided(one)]
        if len(places) > len(self.positional) and not self.any_positional:
            return f"takes {len(self.positional)} arguments by position"
        filled = {one.name for one in self.positional[: len(places)]} | set(given)
        missing = self.required - filled
        if missing and not elided and places + given:
            return f"needs {', '.join(sorted(missing))}"
        return ""


def is_elided(node):
    return isinstance(node, ast.Constant) and node.value is ...


def calls_in(span):
    """The calls that a span of code shows, outermost first; SyntaxError if it is no code."""
    text = re.sub(r"^\.", "it.", span.replace("…", "...")).removeprefix("@")
    try:
        tree = ast.parse(f"async def f():\n {text}")
    except SyntaxError:
        tree = ast.parse(f"async def f():\n {text.removesuffix(':')}: ...")  # with, for
    return [one for one in ast.walk(tree) if isinstance(one, ast.Call)]


def meant_by(name):
    """The functions that a dotted name may mean."""
    receiver, _, last = name.rpartition(".")
    if name in FIXTURES:
        return [FIXTURES[name]]
    if receiver in RECEIVERS:
        return [one] if (one := getattr(RECEIVERS[receiver], last, None)) else []
    return CALLABLES.get(last, [])


def code_of(page):
    for span in SPAN.findall(FENCE.sub("", page.read_text())):
        code = " ".join(span.replace("\\|", "|").split())
        if CALL.search(code):
            yield code


def fault_of(span):
    """What is wrong with a span of inline code; "" if nothing."""
    try:
        calls = calls_in(span)
    except SyntaxError:
        return fault_of_signature(span)
    for call in calls:
        name = ast.unparse(call.func)
        if name.rpartition(".")[2] in OTHERS or span in OF_OTHERS:
            continue
        problems = [Accepted(one).problem(call) for one in meant_by(name)]
        if all(problems):
            return f"{name} {problems[0]}" if problems else f"there is no {name}"
    return ""


def fault_of_signature(span):
    """What is wrong with a span such as `f(a, *, b=1)`, which shows parameters; "" if nothing."""
    shown = re.fullmatch(r"(?:await |@|async with |with )?([\w.]+)\((.*)\)", span)
    if shown is None:
        return "is no code"
    parameters = shown[2].replace(", …", "").replace("=…", "=...")
    try:
        arguments = ast.parse(f"def f({parameters}): ...").body[0].args
    except SyntaxError:
        return "is no code"
    names = {one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)}
    known = [Accepted(one) for one in meant_by(shown[1])]
    if not known:
        return f"there is no {shown[1]}"
    if not any(names <= {*one.keywords, *one.names} for one in known):
        return f"{shown[1]} has other parameters"
    return ""


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_calls_in_the_text_fit_the_functions_they_name(page):
    assert [f"`{span}` {fault}" for span in code_of(page) if (fault := fault_of(span))] == []


@pytest.mark.parametrize(
    ("span", "fault"),
    [
        ("app.dispatch(…)", "there is no app.dispatch"),
        ("app.queue('mail', size=3)", "app.queue takes no size"),
        ("app.topics.browse()", ""),  # a name with brackets, not a call
        ("await app.seen('a', 'b', 'c')", "app.seen takes 2 arguments by position"),
        ("Fixed(1, 2, 3)", "Fixed takes 1 arguments by position"),
        ("app.once(key, *, ttl, forever=False)", "app.once has other parameters"),
        ("welcome.with_options(delay=5).send(7)", ""),
        ("welcome.with_options(dalay=5).send(7)", "welcome.with_options takes no dalay"),
        ("app.task(queue=", "is no code"),
    ],
)
def test_a_call_that_would_raise_is_found(span, fault):
    assert fault_of(span) == fault
