"""The job's own side: reports that an agent can read, checkpoints that are whole or absent, a stop in time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from signalbox import job

from agent.reported import ReportFile
from tests.servers.waiting import until


@pytest.fixture
def report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The report file of a first attempt, and a process that has reported nothing."""
    for name in ("RANK", "SIGNALBOX_RESUME_SEQUENCE", "SIGNALBOX_ATTEMPT", "SIGNALBOX_CHECKPOINT_URI"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("SIGNALBOX_REPORT", str(tmp_path / "report"))
    job.begin_anew()
    yield tmp_path / "report"
    job.begin_anew()


def lines(path: Path) -> list[dict[str, Any]]:
    """What was reported."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def python(code: str, **env: str) -> subprocess.Popen[str]:
    """A job's process."""
    return subprocess.Popen(
        [sys.executable, "-c", code],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_reports_have_the_agents_form(report: Path, tmp_path: Path) -> None:
    """One JSON object a line: step, checkpoint with sequence, uri, size_bytes and step, finished."""
    (tmp_path / "ckpt").write_bytes(b"x" * 10)
    job.report_step(1)
    assert job.report_checkpoint(tmp_path / "ckpt", step=1)
    assert job.report_checkpoint("s3://b/2", step=2, size_bytes=5)
    job.report_finished()
    assert lines(report) == [
        {"step": 1},
        {"checkpoint": {"sequence": 1, "uri": str(tmp_path / "ckpt"), "size_bytes": 10, "step": 1}},
        {"checkpoint": {"sequence": 2, "uri": "s3://b/2", "size_bytes": 5, "step": 2}},
        {"finished": True},
    ]


def test_the_agent_reads_what_is_reported(report: Path) -> None:
    """Both sides mean the same form."""
    job.report_step(7)
    job.report_checkpoint("s3://b/7", step=7, size_bytes=5)
    read = ReportFile(report)
    assert [(c.sequence, c.uri, c.size_bytes, c.step) for c in read.read()] == [(1, "s3://b/7", 5, 7)]
    assert (read.step, read.finished) == (7, False)
    job.report_finished()
    assert read.read() == ()
    assert read.finished


def test_sequences_go_on_above_what_was_there(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Above the resume's; above what an earlier process of the attempt reported; above any earlier attempt's."""
    monkeypatch.setenv("SIGNALBOX_RESUME_SEQUENCE", "41")
    job.report_checkpoint("s3://b/1")
    job.begin_anew()
    job.report_checkpoint("s3://b/2")
    monkeypatch.delenv("SIGNALBOX_RESUME_SEQUENCE")
    monkeypatch.setenv("SIGNALBOX_ATTEMPT", "3")
    job.begin_anew()
    job.report_checkpoint("s3://b/3")
    assert [line["checkpoint"]["sequence"] for line in lines(report)] == [42, 43, 2_000_001]


def test_only_rank_0_reports_checkpoints(report: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang has one line of checkpoints."""
    monkeypatch.setenv("RANK", "3")
    assert not job.report_checkpoint("s3://b/1")
    assert lines(report) == []


def test_steps_are_thinned_and_the_last_one_is_not_lost(report: Path) -> None:
    """A thousand steps a second are a line or two; the last step comes with the next report, or at exit."""
    for step in range(1000):
        job.report_step(step)
    job.report_finished()
    told = lines(report)
    assert (told[0], told[-2:]) == ({"step": 0}, [{"step": 999}, {"finished": True}])
    assert len(told) < 10
    ran = python("from signalbox import job\nfor n in range(50): job.report_step(n)", SIGNALBOX_REPORT=str(report))
    assert ran.communicate()[1] == ""
    assert lines(report)[-1] == {"step": 49}


def test_outside_signalbox_reports_go_nowhere(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The same script runs on a laptop; and a report that cannot be written does not stop training."""
    monkeypatch.delenv("SIGNALBOX_REPORT", raising=False)
    job.begin_anew()
    job.report_step(1)
    assert not job.report_checkpoint("s3://b/1")
    monkeypatch.setenv("SIGNALBOX_REPORT", "/nowhere/at/all")
    assert not job.report_checkpoint("s3://b/1")
    assert "cannot report" in capfd.readouterr().err
    job.begin_anew()


def test_a_checkpoint_that_is_not_there_is_not_reported(report: Path, tmp_path: Path) -> None:
    """Reporting a path before it is complete is a bug of the job, and told as one."""
    with pytest.raises(FileNotFoundError, match="when it is complete"):
        job.report_checkpoint(tmp_path / "none")
    assert lines(report) == []


def _half_written(partial: Path) -> None:
    partial.write_bytes(b"half")
    raise ZeroDivisionError


def test_a_checkpoint_is_whole_or_absent(tmp_path: Path) -> None:
    """Until the block ends the path is not there; afterwards it is whole; after an exception nothing is left (R-51)."""
    final = tmp_path / "deep" / "step-1"
    with job.atomic_checkpoint(final) as partial:
        partial.mkdir()
        (partial / "rank0").write_bytes(b"weights")
        assert not final.exists()
        assert partial.parent == final.parent, "a rename has to stay on one file system"
    assert (final / "rank0").read_bytes() == b"weights"
    with pytest.raises(ZeroDivisionError), job.atomic_checkpoint(tmp_path / "deep" / "step-2") as partial:
        _half_written(partial)
    with pytest.raises(FileNotFoundError, match="nothing was written"), job.atomic_checkpoint(tmp_path / "deep" / "x"):
        pass
    assert os.listdir(final.parent) == ["step-1"]


def test_an_older_checkpoint_stays_until_it_is_replaced(tmp_path: Path) -> None:
    """A file is replaced in one step; a folder is refused before anything is written."""
    final = tmp_path / "latest"
    final.write_bytes(b"old")
    with job.atomic_checkpoint(final) as partial:
        partial.write_bytes(b"new")
        assert final.read_bytes() == b"old"
    assert final.read_bytes() == b"new"
    (tmp_path / "folder").mkdir()
    with pytest.raises(FileExistsError, match="path of its own"), job.atomic_checkpoint(tmp_path / "folder"):
        pytest.fail("the block ran")


def test_a_killed_writer_leaves_no_checkpoint(tmp_path: Path) -> None:
    """SIGKILL in the middle of writing: the path is absent, so nobody can resume from half of it."""
    code = f"""
import sys, threading
from signalbox import job
with job.atomic_checkpoint({str(tmp_path / "ckpt")!r}) as partial:
    partial.write_bytes(b'half'); print('writing', flush=True); threading.Event().wait()
"""
    writer = python(code)
    assert writer.stdout is not None
    assert writer.stdout.readline() == "writing\n"
    writer.kill()
    writer.communicate()
    assert not (tmp_path / "ckpt").exists()


def test_an_upload_is_reported_only_when_it_is_complete(report: Path, tmp_path: Path) -> None:
    """A failed upload is no checkpoint; a complete one is reported under its URI (R-51)."""
    (tmp_path / "a").write_bytes(b"abc")

    def broken(path: Path) -> str:
        raise OSError("the network")

    with pytest.raises(OSError, match="the network"):
        job.upload_behind(tmp_path / "a", broken, step=1).result(10)
    assert lines(report) == []
    assert job.upload_behind(tmp_path / "a", lambda path: f"s3://b/{path.name}", step=2).result(10) == "s3://b/a"
    assert [line["checkpoint"]["size_bytes"] for line in lines(report)] == [3]


def test_a_stop_saves_once_and_not_in_children(tmp_path: Path) -> None:
    """SIGTERM to the whole group: the callback runs once, in the trainer alone, and the exit code is 143."""
    code = f"""
import os, threading
from signalbox import job
job.on_preempt(lambda: open({str(tmp_path / "saved")!r}, 'ab', 0).write(b'x'))
os.fork()
os.write(1, b'ready\\n')
threading.Event().wait(30)
"""
    trainer = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert trainer.stdout is not None
    assert [trainer.stdout.readline() for _ in range(2)] == ["ready\n"] * 2
    os.killpg(trainer.pid, signal.SIGTERM)
    until(lambda: trainer.poll() is not None, what="the trainer has ended")
    trainer.communicate()
    assert (trainer.returncode, (tmp_path / "saved").read_text()) == (143, "x")


def test_the_job_side_loads_nothing_but_the_standard_library() -> None:
    """A training process that imports signalbox.job gets neither httpx nor rich nor typer with it."""
    others = ["httpx", "rich", "typer", "yaml", "asyncio", "concurrent.futures"]
    ran = python(f"import sys, signalbox.job; print([name for name in {others} if name in sys.modules])")
    assert ran.communicate()[0] == "[]\n"


def test_the_checkpoint_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder given; else the checkpoint URI where it is a path; else ./checkpoints. It exists when it is named."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SIGNALBOX_CHECKPOINT_URI", "s3://b/j_1")
    assert job.checkpoint_dir() == tmp_path / "checkpoints"
    monkeypatch.setenv("SIGNALBOX_CHECKPOINT_URI", f"file://{tmp_path}/a%20b")
    assert job.checkpoint_dir() == tmp_path / "a b"
    monkeypatch.setenv("SIGNALBOX_CHECKPOINT_DIR", str(tmp_path / "given"))
    assert job.checkpoint_dir() == tmp_path / "given"
    assert (tmp_path / "given").is_dir()
