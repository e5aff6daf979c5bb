"""Checks tasks that are named in a run directory or a policy file, which may be untrusted.

An id "module:Task-v0" imports a module, possibly from the current directory, and some options name
files, such as a MuJoCo model. On the command line users may give any of these; if they come from a
directory or file, `--allow_imports` is required.
"""

import re
from collections.abc import Mapping
from typing import Any

FLAG_HELP = "Allow the directory's environment to import its module and open its files."
_RESERVED = ("backend", "env_id", "id", "num_envs")  # arguments of `make` functions, not options
_NAMES_A_FILE = re.compile(r"file|path|dir|module|entry|class|env|wrapper", re.IGNORECASE)


def check_import(
    env_id: str,
    options: Mapping[str, Any] | None = None,
    *,
    allow: bool,
    source: str = "the run directory",
) -> None:
    """Checks the environment that a run directory or a policy names, before it is created.

    Args:
      env_id, options: `env` and `env_options` of its config.json.
      allow: the user's `--allow_imports`.
      source: the origin of the names, for messages.

    Raises:
      ValueError: the environment would import or open something and `allow` is False, or an option
        is never allowed.
    """
    if not isinstance(env_id, str) or not isinstance(options or {}, Mapping):
        raise ValueError("env must be a string and env_options an object: config.json is damaged")
    for name, value in (options or {}).items():
        if not name.isidentifier() or name in _RESERVED:
            raise ValueError(f"env_options has {name!r}, which no environment takes: remove it")
        if not allow and not _is_plain(name, value):
            raise ValueError(
                f"{source} gives {env_id!r} the option {name}={value!r:.80}, which may "
                f"open a file or import code: add --allow_imports if you trust {source}"
            )
    module, _, _ = env_id.rpartition(":")
    if module and not allow:
        raise ValueError(
            f"{source} names {env_id!r}, which imports the module {module!r}: add "
            f"--allow_imports if you trust {source} and that module"
        )


def _is_plain(name: str, value: Any) -> bool:
    """Whether an option is a number, a word, or a list or object of these."""
    if value is None or isinstance(value, bool | int | float):
        return True
    if isinstance(value, str):
        return bool(re.fullmatch(r"[\w-]*", value)) and not _NAMES_A_FILE.search(name)
    if isinstance(value, list | tuple):
        return all(_is_plain(name, x) for x in value)
    return isinstance(value, dict) and all(_is_plain(f"{name}.{k}", v) for k, v in value.items())
