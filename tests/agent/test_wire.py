"""The wire loses nothing: every message of scheduler.link comes back equal, and in order."""

import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent import wire
from agent.rpc.signalbox.v1 import scheduler_pb2 as pb
from events.node import GpuSlot
from events.task import TaskEnd
from scheduler import link

_INT = st.integers(0, 2**62)
_TEXT = st.text(max_size=8)
_GRANT = st.tuples(_INT, _INT)


def _any(message: type) -> st.SearchStrategy[object]:
    """Any value of a message, its fields drawn by their types."""
    return st.builds(message, **{name: _field(hint) for name, hint in typing.get_type_hints(message).items()})


def _field(hint: object) -> st.SearchStrategy[object]:
    known: dict[object, st.SearchStrategy[object]] = {
        bool: st.booleans(),
        int: _INT,
        str: _TEXT,
        link.Grant: _GRANT,
        float: st.floats(allow_nan=False),
        type(None): st.none(),
        link.Phase: st.sampled_from(link.Phase),
        TaskEnd: st.sampled_from(TaskEnd),
    }
    if hint in known:
        return known[hint]
    if isinstance(hint, typing.NewType):
        return _field(hint.__supertype__)
    arguments = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is tuple:
        return st.lists(_field(arguments[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(_TEXT, _TEXT, max_size=3)
    if arguments:
        return st.one_of(*[_field(argument) for argument in arguments])
    assert hint in (link.Running, GpuSlot), hint
    return _any(typing.cast(type, hint))


_FROM_AGENT = st.one_of(*[_any(kind) for kind in typing.get_args(link.FromAgent)])
_TO_AGENT = st.one_of(*[_any(kind) for kind in typing.get_args(link.ToAgent)])


@given(st.lists(_FROM_AGENT, max_size=4))
def test_what_agents_say_comes_back_equal(messages: list[link.FromAgent]) -> None:
    """Any list of messages of an agent survives the bytes of the wire, in order."""
    encoded = wire.agent_message(messages).SerializeToString()
    assert wire.from_agent(pb.AgentMessage.FromString(encoded)) == messages


@given(st.lists(_TO_AGENT, max_size=4))
def test_what_schedulers_say_comes_back_equal(messages: list[link.ToAgent]) -> None:
    """Any list of messages to an agent survives the bytes of the wire, in order."""
    encoded = wire.scheduler_message(messages).SerializeToString()
    assert wire.to_agent(pb.SchedulerMessage.FromString(encoded)) == messages


def test_an_unknown_command_is_not_skipped_in_silence() -> None:
    """An item of a newer peer, or an enum's unknown value, is unreadable; it is not taken for something else."""
    with pytest.raises(wire.Unreadable):
        wire.to_agent(pb.SchedulerMessage(items=[pb.SchedulerItem()]))
    ended = pb.AgentItem(task_ended=pb.TaskEnded(number=1, lease_id="j.1.0"))
    with pytest.raises(wire.Unreadable):
        wire.from_agent(pb.AgentMessage(items=[ended]))
