"""Rows and events, made and changed at little cost. The values are those of their classes, frozen for everybody.

A commit of some thousand events makes many thousand rows of twenty fields and more. To set a field of a frozen
dataclass costs a call each; here a value is filled as an instance of a twin, which is not frozen and laid out alike,
and then turned into one of its class. Code for that is written once for each class, as dataclasses does it for
__init__. Nothing is computed: values with a __post_init__ are not for this.
"""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, fields
from functools import partial
from typing import Any, NamedTuple, ParamSpec, TypeVar

T = TypeVar("T")
P = ParamSpec("P")
Setter = Callable[[Any, Any], None]


class _Kind(NamedTuple):
    """How rows of one class are copied and changed."""

    copy: Callable[[Any], Any]
    setters: dict[str, Setter]


_KINDS: dict[type, _Kind] = {}


def replace(row: T, /, **changes: Any) -> T:
    """The row with other values in these fields. KeyError where it has no such field."""
    cls = type(row)
    kind = _KINDS.get(cls)
    if kind is None:
        kind = _KINDS[cls] = _Kind(replacer(cls), {name: getattr(cls, name).__set__ for name in _names(cls)})
    copy: T = kind.copy(row)
    setters = kind.setters
    for name, value in changes.items():
        setters[name](copy, value)
    return copy


def replacer(cls: type[T], *changed: str) -> Callable[..., T]:
    """`replace` for rows of one class and always the same fields: (row, field=value, ...)."""
    names = _names(cls)
    assert set(changed) <= set(names), f"{cls.__name__} has no {sorted(set(changed) - set(names))}"
    arguments = ["row", *(["*", *changed] if changed else [])]
    values = [(name, name if name in changed else f"row.{name}") for name in names]
    return _written(cls, arguments, values, {})


def maker(cls: Callable[P, T]) -> Callable[P, T]:
    """A quick way to make values of a class: all by keyword. Python finds the default of an argument that might also
    come by position without a look into a dictionary, so they all might."""
    assert isinstance(cls, type)
    assert all(field.default_factory is MISSING for field in fields(cls)), f"{cls.__name__} computes a field"
    defaults = {field.name: field.default for field in fields(cls) if field.default is not MISSING}
    arguments = [name for name in _names(cls) if name not in defaults]
    arguments += [f"{name}=default_{name}" for name in defaults]
    scope = {f"default_{name}": default for name, default in defaults.items()}
    return _written(cls, arguments, [(name, name) for name in _names(cls)], scope)


def filler(cls: Callable[P, T]) -> Callable[[tuple[Any, ...]], T]:
    """A quick way to make values of a NamedTuple, from all of its values in order: for half of what its own costs."""
    new: Callable[..., Any] = tuple.__new__
    return partial(new, cls)


def _names(cls: type) -> list[str]:
    assert not hasattr(cls, "__post_init__"), f"{cls.__name__} computes something when it is made"
    return [field.name for field in fields(cls)]


def _written(
    cls: type, arguments: Iterable[str], values: Iterable[tuple[str, str]], scope: dict[str, Any]
) -> Callable[..., Any]:
    """A function with these arguments that fills a twin with these values, and makes it one of the class."""
    twin = type(cls.__name__, (), {"__slots__": tuple(_names(cls))})
    lines = [f"def made({', '.join(arguments)}):", "    new = twin()"]
    lines += [f"    new.{name} = {value}" for name, value in values]
    scope |= {"twin": twin, "cls": cls}
    exec("\n".join([*lines, "    new.__class__ = cls", "    return new"]), scope)
    made: Callable[..., Any] = scope["made"]
    return made
