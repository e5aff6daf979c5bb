"""`rlx2 COMMAND`: finds the command, parses its flags and runs it.

Importing this module is cheap: only the selected command imports JAX and the rest of the package,
so `rlx2 --help` and mistyped commands respond immediately.
"""

import contextlib
import difflib
import faulthandler
import importlib
import os
import re
import signal
import sys
import threading
from collections.abc import Sequence
from typing import Any

from absl import flags, logging

from rlx2_jax._version import __version__
from rlx2_jax.cli import crash

COMMANDS = {
    "train": "train agents, several seeds and settings in one compiled program",
    "resume": "continue a run that was stopped or killed",
    "evaluate": "play a trained lane or a published policy and report its returns",
    "render": "draw one episode as a video or a strip of frames",
    "export": "write a trained actor as C, NumPy, ONNX and StableHLO files",
    "report": "summarize run directories as Markdown and an HTML page",
    "status": "show which runs of a sweep are waiting, running, finished or failed",
}
_HELP = ("-h", "-help", "--help", "--helpshort", "--helpfull")


def script() -> int:
    """The console script; returns the exit code."""
    return crash.process(main)


def alias(name: str) -> int:
    """Runs one command as a separate script; returns the exit code."""
    return crash.process(lambda: run(name, sys.argv[1:]))


def main(argv: Sequence[str] | None = None) -> int:
    """Runs `rlx2` with arguments (default: sys.argv); returns the exit code."""
    name, *rest = (sys.argv[1:] if argv is None else argv) or ["--help"]
    if name in (*_HELP, "help"):
        return crash.guarded(_show_commands)
    if name == "--version":
        print(f"rlx2_jax {__version__}")
        return 0
    if name not in COMMANDS:
        close = difflib.get_close_matches(name, COMMANDS, 1)
        hint = f"did you mean {close[0]}?" if close else f"use one of {', '.join(COMMANDS)}"
        return _usage_error(f"there is no command {name!r}: {hint}")
    return run(name, rest)


def run(name: str, argv: Sequence[str]) -> int:
    """Runs one command with its arguments; returns the exit code."""
    return crash.guarded(lambda: _run(name, list(argv)))


def _run(name: str, argv: list[str]) -> int:
    with contextlib.suppress(OSError, ValueError):  # stderr may not be a file
        faulthandler.enable()
    module = _import(f"rlx2_jax.cli.{name}")
    logging.set_verbosity(logging.WARNING)  # Orbax logs every file
    values = flags.FlagValues()
    _define_use(values)
    try:
        _import_extensions(argv)
    except (flags.Error, ValueError) as error:
        return _usage_error(str(error))
    module.define_flags(values)
    before = argv[: argv.index("--")] if "--" in argv else argv
    if any(argument in _HELP for argument in before):
        print(f"{(module.__doc__ or '').strip()}\n\nflags:{_flag_help(values)}")
        return 0
    try:
        parse(module, name, argv, values)
    except (flags.Error, ValueError, OSError) as error:
        text = re.sub(r"\('Non-boolean .*\)", "use true or false", " ".join(str(error).split()))
        return _usage_error(f"{text} (rlx2 {name} --help lists the flags)")
    _import_from_here(values)
    return module.command(values)


def _import(name: str) -> Any:
    """Imports a command. Ctrl-C exits immediately, since C extensions turn it into other errors."""
    if threading.current_thread() is not threading.main_thread():
        return importlib.import_module(name)
    before = signal.signal(signal.SIGINT, _exit)
    try:
        return importlib.import_module(name)
    finally:
        signal.signal(signal.SIGINT, before)


def _exit(*_: Any) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130)


def parse(module: Any, name: str, argv: list[str], values: flags.FlagValues) -> None:
    """Parses flags into `values`. Positional arguments go to the module's `POSITIONAL` flag, so
    `rlx2 resume RUN` means `rlx2 resume --logdir=RUN`."""
    words = values([f"rlx2 {name}", *argv])[1:]
    flag = getattr(module, "POSITIONAL", None)
    if not words:
        return
    if flag is None:
        raise ValueError(f"unexpected {words}: all settings are flags, --name=value")
    several = isinstance(values[flag].value, list)
    if values[flag].present or (len(words) > 1 and not several):
        raise ValueError(f"unexpected {words[-1:]}: --{flag} is already given")
    values[flag].value = words if several else words[0]
    values[flag].present = 1


def _flag_help(values: flags.FlagValues) -> str:
    """absl's flag help without module names."""
    lines = values.get_help().partition("\nabsl.flags:")[0].splitlines()
    return "\n".join(line for line in lines if line.startswith(" ") or not line)


def _define_use(values: flags.FlagValues) -> None:
    text = (
        "Modules to import first, to register growth rules, architectures, algorithms, metrics or "
        "exporters (docs/extending.md)."
    )
    flags.DEFINE_list("use", [], text, flag_values=values)


def _import_extensions(argv: list[str]) -> None:
    """Imports the modules of `--use` before defining flags, whose values they may extend."""
    values = flags.FlagValues()
    _define_use(values)
    values(["rlx2", *argv], known_only=True)
    if not values["use"].value:
        return
    sys.path.append(os.getcwd())
    for name in values["use"].value:
        try:
            importlib.import_module(name)
        except Exception as error:
            kind = f"{type(error).__name__}: {' '.join(str(error).split())}"
            raise ValueError(
                f"--use={name}: {kind} (use a module in the working directory or an installed one)"
            ) from error


def _import_from_here(values: flags.FlagValues) -> None:
    """Lets `--env=module:Task-v0` import from the working directory, like `python -m`."""
    imports = ":" in str(values["env"].value) if "env" in values else False
    if imports or ("allow_imports" in values and values["allow_imports"].value):
        sys.path.append(os.getcwd())


def _show_commands() -> int:
    width = max(map(len, COMMANDS))
    print("usage: rlx2 COMMAND [flags]\n")
    for name, about in COMMANDS.items():
        print(f"  {name:<{width}}  {about}")
    print("\nrlx2 COMMAND --help lists the flags of a command; rlx2 --version shows the version.")
    return 0


def _usage_error(message: str) -> int:
    crash.escape_output()
    print(f"error: {message}", file=sys.stderr)
    return 2
