"""Job files: YAML as people mean it. What the API takes as text stays the text that was written: `EPOCHS: 010`, `on`,
and a date are not read as a number, a truth value and a time. And policy files, also of TOML, as replay takes them.
Must not judge what is in a file; the API does.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]

from signalbox.errors import NoProfile

TEXTS = frozenset(
    {"env", "labels", "secrets", "command", "name", "array", "deadline", "max_runtime", "image", "workdir"}
)
"""Fields whose scalars are text, also those inside their mappings and lists."""


class BadFile(NoProfile):
    """The file cannot be read as what it is to hold; counts as wrong usage."""


def read_policy(source: Path | str) -> dict[str, Any]:
    """The parameters in a file of TOML, by its ending, or of YAML or JSON; or in a text of these. Raises BadFile."""
    if not isinstance(source, Path) or source.suffix != ".toml":
        return read_mapping(source, of="policy")
    try:
        return tomllib.loads(source.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{source} cannot be read: {error}") from None
    except tomllib.TOMLDecodeError as error:
        raise BadFile(f"{source} is no TOML: {error}") from None


def read_mapping(source: Path | str, *, of: str = "job") -> dict[str, Any]:
    """The mapping in a YAML (or JSON) file, or in a text: `of` a job, or what it is. Raises BadFile, saying where."""
    name = str(source) if isinstance(source, Path) else "stdin"
    try:
        text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise BadFile(f"{name} cannot be read: {error}") from None
    except yaml.YAMLError as error:
        raise BadFile(f"{name} is no YAML: {error}") from None
    if not isinstance(root, yaml.MappingNode):
        raise BadFile(f"{name} holds no {of}: it has to be one mapping of fields to values")
    for key, value in root.value:
        if key.value in TEXTS:
            _as_text(value)
    try:
        return dict(yaml.SafeLoader("").construct_document(root))
    except yaml.YAMLError as error:
        raise BadFile(f"{name} is no YAML: {error}") from None


def settled(spec: dict[str, Any], beside: Path) -> dict[str, Any]:
    """The spec with its workdir made absolute, from the folder `beside` which its file lies in.

    Without an image that folder is also where a job runs that states none: it is a process of this machine's files.
    """
    given = spec.get("workdir")
    if given is None and spec.get("image"):
        return spec
    if not isinstance(given, str | None):
        return spec  # the API says what is wrong with it
    return {**spec, "workdir": os.path.abspath(beside / Path(given or ".").expanduser())}


def _as_text(node: Any) -> None:
    """Tag every scalar below as a string; null stays null."""
    if isinstance(node, yaml.ScalarNode):
        if node.tag != "tag:yaml.org,2002:null":
            node.tag = "tag:yaml.org,2002:str"
    elif isinstance(node, yaml.SequenceNode):
        for inner in node.value:
            _as_text(inner)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            _as_text(key)
            _as_text(value)
