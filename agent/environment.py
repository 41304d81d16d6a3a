"""The environment of a rank: what torch, torchrun and our own helper read, and the job's secrets."""

import os
from collections.abc import Mapping
from pathlib import Path

from agent.processes import MARKER
from scheduler.link import StartTask

_DEFAULTS = {"PYTHONUNBUFFERED": "1"}
"""What is so unless the job says otherwise: output into a log is to be seen as it is written."""
_FROM_THE_AGENT = ("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "TZ", "TMPDIR", "LD_LIBRARY_PATH")


class SecretMissing(Exception):
    """A secret that cannot be had here. Says its name and its reference, never a value."""


def resolve_secret(name: str, reference: str, environ: Mapping[str, str]) -> str:
    """`env:NAME` of the agent, or `file:PATH` on its node, one trailing newline removed. Raises SecretMissing."""
    kind, _, where = reference.partition(":")
    if kind == "env" and where in environ:
        return environ[where]
    if kind == "file":
        try:
            return Path(where).read_text().removesuffix("\n")
        except (OSError, ValueError):
            raise SecretMissing(f"secret {name}: {reference} cannot be read on this node") from None
    raise SecretMissing(f"secret {name}: {reference} is not known on this node")


def rank_environment(message: StartTask) -> dict[str, str]:
    """One task per replica: to a program that is no launcher the replica is one process with its GPUs.

    torchrun reads its options from PET_<OPTION> (torch.distributed.argparse_util.env). Its default, the static
    rendezvous, needs the node's rank and rank 0's address and port, and no backend; `torchrun train.py` works as is.
    """
    port = str(message.master_port)
    return {
        "RANK": str(message.rank),
        "WORLD_SIZE": str(message.replicas),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": message.master_addr,
        "MASTER_PORT": port,
        "PET_NNODES": str(message.replicas),
        "PET_NODE_RANK": str(message.rank),
        "PET_NPROC_PER_NODE": str(max(1, message.gpus_per_replica)),
        "PET_MASTER_ADDR": message.master_addr,
        "PET_MASTER_PORT": port,
        "PET_RDZV_ID": f"{message.job_id}.{message.attempt}",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": ",".join(message.gpu_uuids),
    }


def signalbox_environment(message: StartTask, report: Path) -> dict[str, str]:
    """What our own helper reads. Each attempt writes below a path of its own (P-22)."""
    ours = {
        "SIGNALBOX_JOB_ID": message.job_id,
        "SIGNALBOX_ATTEMPT": str(message.attempt),
        "SIGNALBOX_RANK": str(message.rank),
        "SIGNALBOX_LEASE_ID": message.lease_id,
        "SIGNALBOX_GRACE_S": str(message.grace_s),
        "SIGNALBOX_REPORT": str(report),
    }
    if message.checkpoint_uri is not None:
        ours["SIGNALBOX_CHECKPOINT_URI"] = f"{message.checkpoint_uri.rstrip('/')}/{message.lease_id}/"
    if message.resume_uri is not None:
        ours["SIGNALBOX_RESUME_URI"] = message.resume_uri
    return ours


def task_environment(message: StartTask, *, report: Path, owner: str) -> dict[str, str]:
    """All of it. The job's own variables may replace what the agent passes on, and not what the scheduler sets.
    Raises SecretMissing."""
    environment = {name: os.environ[name] for name in _FROM_THE_AGENT if name in os.environ} | _DEFAULTS
    environment |= message.env
    for name, reference in sorted(message.secrets.items()):
        environment[name] = resolve_secret(name, reference, os.environ)
    environment |= rank_environment(message) | signalbox_environment(message, report)
    environment[MARKER] = f"{owner} {message.lease_id}"
    return environment
