"""Loading the user's application: the MODULE:NAME of `penstock worker`."""

from __future__ import annotations

import inspect
import os
import sys
import traceback
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType, TracebackType

from penstock.app import Penstock
from penstock.errors import ConfigError, PenstockError, SettingError
from penstock.interfaces.cli.output import say
from penstock.interfaces.cli.worker.running import child_environ
from penstock.sync.portal import application_of

__all__ = ["add_folder_of", "load_application", "module_of"]


def load_application(text: str) -> Penstock:
    """Import MODULE:NAME from the working directory or an installed package.

    For an application of `penstock.sync` the asynchronous one behind it is returned. The
    module reads its own settings: options of the command line reach it by the environment.
    """
    module_name, name = _split(text)
    os.environ.update(child_environ())
    add_folder_of(module_name)
    module = _import(text, module_name)
    if not hasattr(module, name):
        raise ConfigError(f"module {module_name!r} has no {name!r}{_instead(module)}")
    found = getattr(module, name)
    app = application_of(found)
    if app is None:
        kind = "a class" if inspect.isclass(found) else f"of type {type(found).__name__}"
        raise ConfigError(f"{text!r} is {kind}, not a Penstock application{_instead(module)}")
    return app


def add_folder_of(module_name: str) -> None:
    """Add the working directory to the path, for the modules of an application.

    Installed packages come first, so that a stray file cannot take the place of one; unless the
    application itself has the name of one, and is in the directory.
    """
    folder, top = str(Path.cwd()), module_name.partition(".")[0]
    if PathFinder.find_spec(top, [folder]) is None or PathFinder.find_spec(top) is None:
        sys.path.append(folder)
    else:
        sys.path.insert(0, folder)


def module_of(text: str) -> str:
    """Return the name of the module in MODULE:NAME."""
    return _split(text)[0]


def _split(text: str) -> tuple[str, str]:
    module_name, _, name = text.partition(":")
    if module_name.endswith(".py"):
        module = module_name.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise ConfigError(f"{text!r}: write it as a module, {module}:{name or 'app'}")
    if not module_name or not name:
        raise ConfigError(f"{text!r}: expected MODULE:NAME, as in shop:app")
    return module_name, name


def _import(text: str, module_name: str) -> ModuleType:
    try:
        return import_module(module_name)
    except SettingError:
        raise  # the settings are wrong, not the code
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
            raise _failed(module_name, error) from None
        if error.name != module_name and error.name in sys.modules:
            raise ConfigError(f"{text!r}: {error.name!r} is a module, not a package") from None
        raise ConfigError(f"there is no module {error.name!r} in {Path.cwd()}") from None
    except PenstockError as error:
        _show(error)
        raise
    except Exception as error:  # noqa: BLE001  it is the user's code
        raise _failed(module_name, error) from None


def _failed(module_name: str, error: Exception) -> ConfigError:
    _show(error)
    return ConfigError(f"importing {module_name!r} failed: {type(error).__name__}: {error}")


def _show(error: Exception) -> None:
    """Print the traceback of the user's code, without the frames that import it."""
    trace = _beyond_the_import(error.__traceback__)
    for line in "".join(traceback.format_exception(type(error), error, trace)).splitlines():
        say(line, err=True)


def _beyond_the_import(trace: TracebackType | None) -> TracebackType | None:
    ours = {__file__, "<frozen importlib._bootstrap>", "<frozen importlib._bootstrap_external>"}
    ours.add(import_module.__code__.co_filename)
    while trace is not None and trace.tb_frame.f_code.co_filename in ours:
        trace = trace.tb_next
    return trace


def _instead(module: ModuleType) -> str:
    names = [name for name, value in vars(module).items() if application_of(value) is not None]
    if not names:
        return "; expected a Penstock(), as in `app = Penstock()`"
    return f"; there is {', '.join(f'{module.__name__}:{name}' for name in names)}"
