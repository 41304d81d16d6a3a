"""The user guide says what is so."""

from __future__ import annotations

from pathlib import Path

from signalbox.cli.specfile import read_mapping, settled

from api.spec import read_submission
from events.ids import ClusterId

GUIDE = Path(__file__).parents[2] / "docs" / "user-guide.md"


def test_the_guides_job_file_is_a_job(tmp_path: Path) -> None:
    """Its example is read by the client and taken by the api, each field as it stands there."""
    text = GUIDE.read_text().split("```yaml\n")[1].split("```")[0]
    spec = read_submission(settled(read_mapping(text), tmp_path), ClusterId("main"))
    assert (spec.replicas, spec.gpus_per_replica, spec.workdir, spec.retries) == (2, 8, str(tmp_path), 2)
    assert spec.command == ("python", "train.py", "--lr", "3e-4")
    assert (spec.checkpoint.grace_s, spec.secrets) == (120, {"HF_TOKEN": "env:HF_TOKEN"})
