"""What `up` says of words that it cannot follow, before it starts anything."""

import argparse
import socket
from pathlib import Path

import pytest

from signalboxd import up
from signalboxd.supervisor import ChildFailed


def words(*argv: str) -> argparse.Namespace:
    """The arguments of `signalboxd up`, as parsed."""
    parser = argparse.ArgumentParser()
    up.add_arguments(parser)
    return parser.parse_args(["--port", "0", *argv])


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        (("--gpus", "nonsense"), "--gpus"),
        (("--nodes", "-1"), "--nodes -1"),
        (("--schedulers", "0"), "--schedulers 0"),
    ],
)
def test_a_word_that_cannot_be_followed_is_named(argv: tuple[str, ...], named: str) -> None:
    """With its value, and nothing is started."""
    with pytest.raises(ChildFailed, match=named):
        up.check_words(words(*argv))


def test_a_port_that_is_taken_is_named() -> None:
    """Rather than found in a log after a minute."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ChildFailed, match=f"port {port} is in use"):
            up.check_words(words("--port", str(port)))


def test_good_words_pass() -> None:
    """The defaults, and NVML."""
    up.check_words(words())
    up.check_words(words("--gpus", "nvml"))


def test_one_folder_is_for_one_up(tmp_path: Path) -> None:
    """The second is told where the first answers."""
    with up.alone(tmp_path):
        (tmp_path / "up.json").write_text('{"address": "http://127.0.0.1:1"}')
        with pytest.raises(ChildFailed, match="already running"), up.alone(tmp_path):
            pass
