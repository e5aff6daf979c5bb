"""Tasks that are named by a run directory or a policy, which may come from elsewhere.

An id "module:Task-v0" imports a module, from the current directory too, and some options name
files or tasks: a MuJoCo model, for one. The user may give any of these on a command line. Read
from such a directory they need the user's consent, `--allow_imports`.
"""

import re
from collections.abc import Mapping
from typing import Any

FLAG_HELP = "Import the module and open the files that the directory names for its environment."
_RESERVED = ("backend", "env_id", "id", "num_envs")  # arguments of `make` functions, not options
_NAMES_A_FILE = re.compile(r"file|path|dir|module|entry|class|env|wrapper", re.IGNORECASE)


def check_import(
    env_id: str,
    options: Mapping[str, Any] | None = None,
    *,
    allow: bool,
    source: str = "the run directory",
) -> None:
    """Checks the environment that a run directory or a policy names, before it is made.

    Args:
      env_id, options: `env` and `env_options` of its config.json.
      allow: the user's `--allow_imports`.
      source: where the names come from, for messages.

    Raises:
      ValueError: names what would be imported or opened, and the flag. Options that can never be
        passed on are refused whatever the flag says.
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
