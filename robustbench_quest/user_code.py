"""Code that the user names: ``--model FILE.py:FUNC``, and the file of ``--attention FILE.py:CLASS``.

It runs because it was named. The hash of its file, and of those beside it that it imports, becomes part of
the model's identity.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from .errors import OptionError, brief_path
from .identity import file_sha256
from .types import OptionValue
from .user_sources import source_sha256, sources_sha256


def split_target(text: str) -> tuple[str, str] | None:
    """Return (file or module, attribute) of "FILE.py:NAME" or "package.module:NAME"; None for other names."""
    where, colon, attribute = text.rpartition(":")
    return (where, attribute) if colon and where and attribute else None


def short_name(text: str) -> str:
    """Return "FILE.py:NAME" without the folder, which says nothing about what the code computes."""
    where, attribute = split_target(text) or ("", text)
    return f"{Path(where).name}:{attribute}" if where else attribute


def load_object(text: str, flag: str) -> tuple[Callable[..., Any], str]:
    """Import what ``text`` names and return it with the sha256 of the sources that define it.

    Args:
        text: "FILE.py:NAME" or "package.module:NAME".
        flag: "--model" or "--attention", for messages.

    Raises:
        OptionError: no such file or module, it fails to import, no such attribute, or it is not callable.
    """
    target = split_target(text)
    if target is None:
        raise OptionError(f"{flag} {text!r} must be FILE.py:NAME or package.module:NAME")
    where, attribute = target
    with fixed_random_state():
        module = _module_of_file(Path(where), flag) if where.endswith(".py") else _module_by_name(where, flag)
    if not hasattr(module, attribute):
        public = sorted(
            name for name, value in vars(module).items() if callable(value) and not name.startswith("_")
        )
        raise OptionError(
            f"{flag}: {where} has no {attribute!r}; it has {', '.join(public[:12]) or 'nothing callable'}"
        )
    found = getattr(module, attribute)
    if not callable(found):
        raise OptionError(f"{flag}: {text} is a {type(found).__name__}, expected a class or function")
    file = getattr(module, "__file__", None)
    try:
        # What has no source of its own, such as a functools.partial, counts as the module's.
        own = sources_sha256(Path(file)) if file and Path(file).is_file() else ""
        return found, source_sha256(found) or own
    # A file beside it that it imports in some cases only, and that cannot be read.
    except (OSError, SyntaxError, ValueError, RecursionError) as error:
        raise OptionError(f"{flag}: the sources of {text} cannot be read: {said(error)}") from error


def build_user_model(text: str, options: Mapping[str, OptionValue]) -> tuple[nn.Module, str]:
    """Return the module that ``text`` builds from ``options``, in eval mode, and the sha256 of its file.

    Raises:
        OptionError: it cannot be imported, does not take the options, fails, or returns no module.
    """
    factory, source_hash = load_object(text, "--model")
    with fixed_random_state():
        model = call(factory, text, "--model", options)
    if not isinstance(model, nn.Module):
        raise OptionError(f"--model {text} must return a torch.nn.Module; it returned {type(model).__name__}")
    refuse_hollow(model, f"--model {text}")
    return model.eval(), source_hash


def refuse_hollow(module: nn.Module, subject: str) -> None:
    """Refuse parameters and buffers that have no values yet.

    Raises:
        OptionError: with the name of the first.
    """
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        lazy = is_lazy(tensor)
        if lazy or tensor.is_meta:
            kind = "is not initialised (a Lazy module)" if lazy else "is on the meta device"
            raise OptionError(f"{subject}: {name} {kind}, expected values; build the module in full")


def call(function: Callable[..., Any], text: str, flag: str, options: Mapping[str, Any]) -> Any:
    """Return ``function(**options)``.

    Raises:
        OptionError: it does not take these options, or it fails.
    """
    given = ", ".join(f"{key}={value!r}" for key, value in options.items())
    try:
        signature = inspect.signature(function)
        signature.bind(**options)
    except TypeError as error:
        raise OptionError(f"{flag}: {text}{signature} cannot be called with ({given}): {error}") from error
    except ValueError:  # built without a signature
        pass
    try:
        return function(**options)
    except (Exception, SystemExit) as error:  # a user's code can raise anything
        raise OptionError(f"{flag}: {text}({given}) failed: {said(error)}") from error


def said(error: BaseException) -> str:
    """Return an error's class and the beginning of its message, as one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:160]}"


def takes(function: Callable[..., Any], parameter: str) -> bool:
    """Return whether a function or class can be called with ``parameter=...``."""
    try:
        parameters = inspect.signature(function).parameters
    except ValueError:
        return False
    return parameter in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


@contextlib.contextmanager
def fixed_random_state() -> Iterator[None]:
    """Seed torch's, numpy's and Python's generators, and give them back their state afterwards.

    A model may draw its first weights from any of them; two processes must build the same one.
    """
    numpy_state, python_state = np.random.get_state(), random.getstate()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)  # torch.manual_seed would also seed the GPUs, for good
        np.random.seed(0)
        random.seed(0)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)
            random.setstate(python_state)


def _module_of_file(path: Path, flag: str) -> ModuleType:
    try:
        if not path.is_file():
            raise OptionError(f"{flag}: no such file: {brief_path(path)}")
        # The name holds the content's hash, so an edited file is imported again and an unchanged one is not.
        name = f"rbq_user_{path.stem}_{file_sha256(path)[:16]}"
    except OSError as error:
        raise OptionError(f"{flag}: {brief_path(path)} cannot be read: {error.strerror or error}") from error
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) == str(path.resolve()):
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path.resolve())
    if spec is None or spec.loader is None:
        raise OptionError(f"{flag}: {path} cannot be imported as Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up here
    # As when Python runs a script, files beside it can be imported.
    folder = str(path.resolve().parent)
    sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except BaseException as error:
        del sys.modules[name]
        if not isinstance(error, Exception | SystemExit):
            raise
        raise OptionError(f"{flag}: {path} fails to import: {said(error)}") from error
    finally:
        sys.path.remove(folder)
    return module


def _module_by_name(name: str, flag: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise OptionError(
            f"{flag}: no module {error.name!r}; give FILE.py:NAME or an installed package's module"
        ) from error
    except (Exception, SystemExit) as error:  # a user's code can raise anything
        raise OptionError(f"{flag}: {name} fails to import: {said(error)}") from error
