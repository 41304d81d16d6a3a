"""What a rank finds in its environment."""

from pathlib import Path

import pytest

from agent.environment import SecretMissing, resolve_secret, task_environment
from tests.agent.builders import start_task

REPORT = Path("/state/report.jsonl")


def test_torchrun_needs_no_flags() -> None:
    """torchrun reads nodes, rank, processes and the address of rank 0 from PET_*; they are all there, and no backend
    is named, so that its static rendezvous is used."""
    message = start_task(rank=3, replicas=16, gpus_per_replica=8, gpu_uuids=("A", "B"), master_addr="n-7")
    env = task_environment(message, report=REPORT, owner="o")
    assert {name: env[name] for name in env if name.startswith("PET_")} == {
        "PET_NNODES": "16",
        "PET_NODE_RANK": "3",
        "PET_NPROC_PER_NODE": "8",
        "PET_MASTER_ADDR": "n-7",
        "PET_MASTER_PORT": "29500",
        "PET_RDZV_ID": "j_1.1",
    }
    assert env["CUDA_VISIBLE_DEVICES"] == "A,B"


def test_a_program_without_a_launcher_is_one_process_of_its_gang() -> None:
    """RANK and WORLD_SIZE count replicas; the replica is alone with its GPUs."""
    env = task_environment(start_task(rank=3, replicas=16), report=REPORT, owner="o")
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    assert [env[name] for name in names] == ["3", "16", "0", "1", "n-1", "29500"]


def test_p_22_each_lease_writes_its_checkpoints_below_a_path_of_its_own() -> None:
    """The checkpoint URI ends with the lease; the resume URI is passed as it is, and neither is set without a value."""
    message = start_task(checkpoint_uri="s3://bucket/x/", resume_uri="s3://bucket/x/j_1.0.0/5")
    env = task_environment(message, report=REPORT, owner="o")
    assert env["SIGNALBOX_CHECKPOINT_URI"] == "s3://bucket/x/j_1.1.0/"
    assert env["SIGNALBOX_RESUME_URI"] == "s3://bucket/x/j_1.0.0/5"
    assert env["SIGNALBOX_REPORT"] == str(REPORT)
    assert env["SIGNALBOX_LEASE"] == "o j_1.1.0"
    bare = task_environment(start_task(), report=REPORT, owner="o")
    assert not {"SIGNALBOX_CHECKPOINT_URI", "SIGNALBOX_RESUME_URI"} & bare.keys()


def test_the_job_cannot_take_another_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job's variables go over the agent's, the scheduler's go over the job's, and the agent's other variables
    (its token!) are not passed on."""
    monkeypatch.setenv("LANG", "C")
    monkeypatch.setenv("SIGNALBOX_AGENT_TOKEN", "secret")
    env = task_environment(start_task(env={"LANG": "de", "RANK": "9"}), report=REPORT, owner="o")
    assert (env["LANG"], env["RANK"]) == ("de", "0")
    assert "SIGNALBOX_AGENT_TOKEN" not in env


def test_python_writes_at_once_unless_the_job_says_otherwise() -> None:
    """Output that goes into a log would be held back by Python until there is a lot of it; an empty value undoes it."""
    assert task_environment(start_task(), report=REPORT, owner="o")["PYTHONUNBUFFERED"] == "1"
    message = start_task(env={"PYTHONUNBUFFERED": ""})
    assert task_environment(message, report=REPORT, owner="o")["PYTHONUNBUFFERED"] == ""


def test_secrets_come_from_the_agent_or_a_file(tmp_path: Path) -> None:
    """`env:` and `file:` are resolved on the node; one trailing newline of a file is not part of the secret."""
    (tmp_path / "key").write_text("k\n\n")
    assert resolve_secret("A", "env:B", {"B": "v"}) == "v"
    assert resolve_secret("A", f"file:{tmp_path / 'key'}", {}) == "k\n"


@pytest.mark.parametrize("reference", ["env:MISSING", "file:/no/such/file", "vault:x", "B"])
def test_an_unknown_secret_is_named(reference: str) -> None:
    """The error says which secret and which reference."""
    with pytest.raises(SecretMissing, match=f"secret A: {reference}"):
        resolve_secret("A", reference, {"B": "v"})
