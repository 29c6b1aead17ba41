"""Where the programs start, and how errors leave them: one line, and an exit code.

2: bad input, nothing was run. 1: some cells failed, or a fault of this package. 130: interrupted, or told to
terminate.
"""

from __future__ import annotations

import signal
import sys
import threading
from typing import NoReturn

import click

from .._version import __version__
from ..errors import QuestError
from .debug import show_traceback
from .demo import demo
from .evaluate import evaluate
from .flags import as_flags
from .inspection import inspect
from .listing import listing


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="rbq")
def rbq() -> None:
    """Robustness evaluation for vision transformers."""


rbq.add_command(evaluate, "eval")
rbq.add_command(inspect, "inspect")
rbq.add_command(listing, "list")
rbq.add_command(demo, "demo")


def main() -> NoReturn:
    """Run ``rbq``."""
    run(rbq, "rbq")


def eval_command() -> NoReturn:
    """Run ``run_eval.py``, the same command as ``rbq eval``."""
    run(evaluate, "run_eval.py")


def run(command: click.Command, name: str) -> NoReturn:
    """Run a command and leave the process with its exit code."""
    _end_as_interrupted()
    try:
        code = command.main(prog_name=name, standalone_mode=False)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.ctx.get_help() if error.ctx else "")
        code = 2
    except click.ClickException as error:
        code = _fail(_one_line(error.format_message()), 2)
    except QuestError as error:
        code = _fail(as_flags(str(error)), 2)
    except (KeyboardInterrupt, click.Abort):
        code = _fail("interrupted; finished blocks are kept, and the same command goes on from there", 130)
    except Exception as error:
        code = _fail(
            f"internal error: {type(error).__name__}: {_one_line(str(error))} (--debug shows where)", 1
        )
    sys.exit(code if isinstance(code, int) else 0)


def _end_as_interrupted() -> None:
    """Let a request to terminate, as clusters send it, end the command as Ctrl-C does."""

    def interrupt(*_: object) -> NoReturn:
        raise KeyboardInterrupt

    if threading.current_thread() is threading.main_thread():  # elsewhere Python allows no handlers
        signal.signal(signal.SIGTERM, interrupt)


def _fail(message: str, code: int) -> int:
    show_traceback()
    click.echo(f"error: {message}", err=True)
    return code


def _one_line(text: str) -> str:
    return " ".join(text.split())
