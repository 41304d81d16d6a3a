"""Where the API is and who asks: a small TOML file, overridden by the environment.

    # ~/.config/signalbox/profile.toml
    address = "http://127.0.0.1:8080"
    token = "..."
    team = "pretrain"          # defaults of `signalbox run` and `submit`
    gpu_type = "h100"
    max_runtime = "2h"

Must not talk to the API.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from signalbox.errors import NoProfile

DEFAULTS = ("team", "gpu_type", "max_runtime")
"""Fields that a profile fills in where a job states nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """An address with its token, and the defaults that jobs get where they state nothing themselves."""

    address: str
    token: str | None = None
    team: str | None = None
    gpu_type: str | None = None
    max_runtime: str | None = None

    def __repr__(self) -> str:
        """Without the token: notebooks print what they hold, and are shared."""
        return f"Profile(address={self.address!r}, team={self.team!r})"

    def save(self, path: Path | None = None) -> Path:
        """Write the profile, readable by its owner alone; returns where. Replaces the old one in one step."""
        path = path or default_path()
        path.parent.mkdir(parents=True, exist_ok=True)
        kept = ((f.name, getattr(self, f.name)) for f in fields(self))
        lines = [f"{name} = {_toml_string(value)}\n" for name, value in kept if value is not None]
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(lines)
        os.replace(temporary, path)
        return path


def default_path(env: Mapping[str, str] = os.environ) -> Path:
    """`$SIGNALBOX_PROFILE`, else profile.toml in signalbox/ of the XDG configuration folder."""
    if given := env.get("SIGNALBOX_PROFILE"):
        return Path(given).expanduser()
    return _folder(env) / "profile.toml"


def load(profile: str | Path | None = None, address: str | None = None, token: str | None = None) -> Profile:
    """The profile in force: arguments before environment before file.

    `profile` is a path, or a bare name (`prod` means prod.toml next to profile.toml). With an address from an argument
    or the environment no file is needed, and a file's token is used only for the address that stands beside it, so
    that it is never sent elsewhere. Raises NoProfile.
    """
    env = os.environ
    path = _path(profile, env)
    stored = _read(path) if path.exists() else None
    if stored is None and profile is not None:
        raise NoProfile(f"No profile at {path}")
    where = (address or env.get("SIGNALBOX_ADDRESS") or (stored.address if stored else "")).rstrip("/")
    if not where:
        raise NoProfile(
            f"No profile: nothing says where Signalbox is. Write {path} with a line"
            ' address = "http://HOST:PORT" (`./dev up` does so), or set SIGNALBOX_ADDRESS.'
        )
    if not where.startswith(("http://", "https://")):
        raise NoProfile(f"{where!r} is not an address: it has to begin with http:// or https://")
    own = stored.token if stored and stored.address.rstrip("/") == where else None
    return replace(stored or Profile(address=where), address=where, token=token or env.get("SIGNALBOX_TOKEN") or own)


def with_defaults(spec: Mapping[str, Any], profile: Profile) -> dict[str, Any]:
    """The spec with the profile's values for what it does not state."""
    stated = {name: getattr(profile, name) for name in DEFAULTS if getattr(profile, name)}
    return {**stated, **spec}


def _folder(env: Mapping[str, str]) -> Path:
    base = env.get("XDG_CONFIG_HOME")
    return (Path(base) if base else Path.home() / ".config") / "signalbox"


def _path(profile: str | Path | None, env: Mapping[str, str]) -> Path:
    if profile is None:
        return default_path(env)
    if isinstance(profile, Path) or "/" in profile or profile.endswith(".toml"):
        return Path(profile).expanduser()
    return _folder(env) / f"{profile}.toml"


def _read(path: Path) -> Profile:
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise NoProfile(f"The profile {path} cannot be read: {error}") from None
    names = {f.name for f in fields(Profile)}
    for name, value in table.items():
        if name not in names:
            raise NoProfile(f"The profile {path} has an unknown line {name!r}; known are {', '.join(sorted(names))}")
        if not isinstance(value, str):
            raise NoProfile(f"The profile {path}: {name} has to be a string in quotes")
    return Profile(**{"address": "", **table})


def _toml_string(value: str) -> str:
    """A JSON string of ASCII is a TOML basic string."""
    return json.dumps(value)
