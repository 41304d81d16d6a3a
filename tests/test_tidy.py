"""The rules of the house that no linter knows: sizes, banned calls, names, docstrings, loose ends.

Each rule is a function from one source file to its offences. A rule that is in the way is changed here, with a reason,
not worked around.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("events", "commands", "scheduler", "projections", "replay", "api", "agent", "signalboxd")
CLIENT = "client/src/signalbox"
CHECKED = (*PACKAGES, CLIENT, "tests", "bench")

FUNCTION_LINES_MAX = 70
FILE_LINES_MAX = 400
# Files and functions ("path::name") that may be longer, each with its reason. Keep it tiny.
MAY_BE_LONG: dict[str, str] = {}

# events/, commands/ and scheduler/planning/ are pure but for these: adapters of the log, which talk to real servers.
IMPURE = re.compile(r"events/(kafka|memory|postgres|log)\w*\.py")
PURE = re.compile(r"(events|commands|scheduler/planning)/.*\.py")
BANNED_IN_PURE = re.compile(
    r"(time|random|secrets|uuid|asyncio|threading|socket)\.\w+|os\.(urandom|getenv|environ)"
    r"|(datetime\.)?(datetime|date)\.(now|utcnow|today)|uuid[1457]|input|open|print|id|hash"
)
MAY_SLEEP = re.compile(r"tests/servers/.*\.py|tests/.*/waiting\.py")
FORBIDDEN_WORDS = {"manager", "handler", "processor", "util", "utils", "helper", "helpers"}
LOOSE_END = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X", "HA" + "CK"]) + r")\b")


@dataclass(frozen=True, slots=True)
class Source:
    """One Python file of ours: its path from the root, its text and its tree."""

    path: str
    text: str

    @property
    def tree(self) -> ast.Module:
        return _parsed(self.text, self.path)

    def functions(self) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
        """Every function, those inside classes and functions too."""
        return (node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))

    def calls(self) -> Iterator[tuple[str, ast.Call]]:
        """Every call of a plain or dotted name, with that name as it would be without `import ... as` and `from`."""
        real = _import_names(self.tree)
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Call) and (name := _dotted(node.func)):
                first, dot, rest = name.partition(".")
                yield real.get(first, first) + dot + rest, node


Rule = Callable[[Source], Iterator[str]]


def long_functions(source: Source) -> Iterator[str]:
    """No function is longer than 70 lines."""
    for function in source.functions():
        lines = (function.end_lineno or 0) - function.lineno + 1
        if lines > FUNCTION_LINES_MAX and f"{source.path}::{function.name}" not in MAY_BE_LONG:
            yield f"{source.path}:{function.lineno} {function.name} has {lines} lines"


def long_files(source: Source) -> Iterator[str]:
    """No file is longer than 400 lines."""
    lines = source.text.count("\n")
    if lines > FILE_LINES_MAX and source.path not in MAY_BE_LONG:
        yield f"{source.path} has {lines} lines"


def impure_calls(source: Source) -> Iterator[str]:
    """Pure modules read no clock, draw no random number, and depend on no address or seed of the process."""
    if PURE.fullmatch(source.path) and not IMPURE.fullmatch(source.path):
        for name, call in source.calls():
            if BANNED_IN_PURE.fullmatch(name):
                yield f"{source.path}:{call.lineno} calls {name}"


def sleeps(source: Source) -> Iterator[str]:
    """Tests wait for something to be true, they do not sleep (`asyncio.sleep(0)` only gives way)."""
    if source.path.startswith("tests/") and not MAY_SLEEP.fullmatch(source.path):
        for name, call in source.calls():
            if name in ("time.sleep", "asyncio.sleep") and ast.unparse(call.args[0]) != "0":
                yield f"{source.path}:{call.lineno} calls {name}: use tests/servers/waiting.py"


def silent_tests(source: Source) -> Iterator[str]:
    """Every test says in its docstring what is true."""
    if source.path.startswith("tests/"):
        for function in source.functions():
            if function.name.startswith("test_") and not ast.get_docstring(function):
                yield f"{source.path}:{function.lineno} {function.name}"


def modules_without_purpose(source: Source) -> Iterator[str]:
    """Every module, and so every package, opens with what it is for."""
    if not ast.get_docstring(source.tree):
        yield f"{source.path} has no docstring"


def empty_names(source: Source) -> Iterator[str]:
    """Names of modules and classes say what the thing does; these words say nothing."""
    names = [(part, 1) for part in Path(source.path).with_suffix("").parts]
    names += [(node.name, node.lineno) for node in ast.walk(source.tree) if isinstance(node, ast.ClassDef)]
    for name, line in names:
        words = {word.lower() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
        if words & FORBIDDEN_WORDS:
            yield f"{source.path}:{line} {name}"


def loose_ends(source: Source) -> Iterator[str]:
    """Nothing is left for later in the code: it is done, or it is an issue."""
    for number, line in enumerate(source.text.splitlines(), 1):
        if LOOSE_END.search(line):
            yield f"{source.path}:{number} {line.strip()}"


# Each rule with an example of what it must find, so that no rule passes because it sees nothing.
RULES: list[tuple[Rule, Source]] = [
    (long_functions, Source("api/x.py", "def f():\n" + "    a = 1\n" * 70)),
    (long_files, Source("api/x.py", "a = 1\n" * 401)),
    (impure_calls, Source("commands/x.py", "from datetime import datetime as d\nd.now()")),
    (impure_calls, Source("events/x.py", "from time import monotonic\nmonotonic()")),
    (impure_calls, Source("scheduler/planning/x.py", "import uuid\nuuid.uuid4()")),
    (sleeps, Source("tests/unit/x.py", "from asyncio import sleep\nsleep(1)")),
    (silent_tests, Source("tests/unit/x.py", "class T:\n    async def test_x(self): ...")),
    (modules_without_purpose, Source("api/x.py", '""""""\n')),
    (empty_names, Source("api/x.py", "class JobManager: ...")),
    (empty_names, Source("api/time_utils.py", "a = 1")),
    (loose_ends, Source("api/x.py", "a = 1  # " + "TO" + "DO later")),
]


@pytest.mark.parametrize("rule", dict.fromkeys(rule for rule, _ in RULES), ids=lambda rule: rule.__name__)
def test_the_code_keeps_the_rule(rule: Rule) -> None:
    """No file of ours offends against the rule."""
    offences = [offence for source in _sources() for offence in rule(source)]
    if offences:
        pytest.fail("\n".join([rule.__doc__ or rule.__name__, *offences]), pytrace=False)


@pytest.mark.parametrize(("rule", "bad"), RULES, ids=lambda value: getattr(value, "__name__", ""))
def test_the_rule_finds_what_it_is_for(rule: Rule, bad: Source) -> None:
    """A file that offends against the rule is found."""
    assert list(rule(bad)) != []


def test_each_package_is_typed_and_opens_with_a_docstring() -> None:
    """Each package has py.typed, and every folder of code in it an `__init__.py` (whose docstring is a rule above)."""
    homes = [ROOT / name for name in (*PACKAGES, CLIENT)]
    assert [home for home in homes if not (home / "py.typed").exists()] == []
    folders = {(ROOT / source.path).parent for source in _sources()}
    assert [folder for folder in sorted(folders) if not (folder / "__init__.py").exists()] == []


def test_no_installed_distribution_brings_a_package_of_the_same_name() -> None:
    """Our packages are plain and top level: nothing that is installed beside them may be called the same."""
    brought = packages_distributions()
    assert {"asyncpg", "pytest"} <= brought.keys(), "the environment was not read"
    ours = {"signalboxd", "signalbox-client"}
    names = [*PACKAGES, "signalbox", "tests", "bench"]
    assert {name: brought[name] for name in names if not set(brought.get(name, [])) <= ours} == {}


def test_the_exceptions_are_still_needed() -> None:
    """What may be long exists: an exception goes when the thing it was made for goes."""
    there = {source.path for source in _sources()}
    there |= {f"{source.path}::{function.name}" for source in _sources() for function in source.functions()}
    assert sorted(MAY_BE_LONG.keys() - there) == []


@cache
def _sources() -> list[Source]:
    """Every Python file of ours that a person writes; what protoc writes is left out."""
    found = [path for home in CHECKED for path in sorted((ROOT / home).rglob("*.py")) if "_pb2" not in path.name]
    assert found, "no source was found"
    return [Source(str(path.relative_to(ROOT)), path.read_text()) for path in found]


@cache
def _parsed(text: str, path: str) -> ast.Module:
    return ast.parse(text, path)


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (before := _dotted(node.value)):
        return f"{before}.{node.attr}"
    return None


def _import_names(tree: ast.Module) -> dict[str, str]:
    """What each imported name stands for: `from time import time as t` gives t: time.time."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names
