"""Profiles: found without flags, overridden by the environment, and never the way by which a token leaks."""

from __future__ import annotations

import stat
from pathlib import Path

import pytest
from signalbox import NoProfile, Profile, connect
from signalbox.profile import load


@pytest.fixture(autouse=True)
def _bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SIGNALBOX_PROFILE", "SIGNALBOX_ADDRESS", "SIGNALBOX_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))


def test_a_saved_profile_is_found_without_flags(tmp_path: Path) -> None:
    """What `save` writes is what `load` reads, odd characters included, and only its owner may read it."""
    saved = Profile(address="http://h:1", token='a"\\\n\u00e9', team="t", gpu_type="h100", max_runtime="2h")
    path = saved.save()
    assert path == tmp_path / "signalbox" / "profile.toml"
    assert load() == saved
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_environment_overrides_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Address and token come from the argument, then the environment, then the file; the rest stays the file's."""
    Profile(address="http://file:1", token="file", team="t").save(tmp_path / "other.toml")
    monkeypatch.setenv("SIGNALBOX_PROFILE", str(tmp_path / "other.toml"))
    monkeypatch.setenv("SIGNALBOX_ADDRESS", "http://env:1/")
    monkeypatch.setenv("SIGNALBOX_TOKEN", "env")
    assert load() == Profile(address="http://env:1", token="env", team="t")
    assert load(address="http://arg:1", token="arg") == Profile(address="http://arg:1", token="arg", team="t")


def test_a_token_goes_to_no_other_address() -> None:
    """A profile's token belongs to the address beside it: another address does not get it."""
    Profile(address="http://mine:1", token="secret").save()
    assert load(address="http://elsewhere:1").token is None
    assert load(address="http://mine:1/").token == "secret"
    assert "secret" not in repr(load())


def test_a_bare_name_is_a_profile_beside_the_default(tmp_path: Path) -> None:
    """`--profile prod` is prod.toml in the same folder; one that is not there is an error, not a default."""
    Profile(address="http://prod:1").save(tmp_path / "signalbox" / "prod.toml")
    assert load("prod").address == "http://prod:1"
    with pytest.raises(NoProfile, match=r"staging\.toml"):
        load("staging")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("address = http", "cannot be read"),
        ('addres = "http://h:1"', "unknown line 'addres'; known are address"),
        ("address = 8080", "has to be a string"),
        ('address = "h:8080"', "begin with http"),
        ('team = "t"', "nothing says where Signalbox is"),
    ],
)
def test_a_bad_profile_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    """Each fault of a profile is told, and nothing is guessed."""
    path = tmp_path / "bad.toml"
    path.write_text(text)
    with pytest.raises(NoProfile, match=message):
        load(str(path))


def test_without_any_profile_it_says_what_to_do(tmp_path: Path) -> None:
    """The first thing that a new user may see names the file to write, and the variable."""
    with pytest.raises(NoProfile) as caught:
        connect()
    assert str(tmp_path / "signalbox" / "profile.toml") in str(caught.value)
    assert "SIGNALBOX_ADDRESS" in str(caught.value)
