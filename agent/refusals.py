"""Why a task's process did not come to be, in a sentence for people. Standard library only: the shim imports it."""

from __future__ import annotations

import errno
import os

_NOT_THERE = (errno.ENOENT, errno.ENOTDIR)
_NOT_USABLE = (errno.EACCES, errno.EPERM, errno.ENOEXEC, errno.EISDIR, errno.E2BIG, errno.ELOOP, errno.ENAMETOOLONG)
_SENTENCE_MAX = 300


def refused(failure: OSError, *, workdir: str | None = None, program: str | None = None) -> tuple[int, str]:
    """(exit code, sentence) of a failed chdir to `workdir` or exec of `program`. The codes are a shell's: 127 not
    there, 126 not usable, the job's own doing and no better at another try; 0: the node's fault."""
    number, why = failure.errno, failure.strerror or str(failure)
    code = 127 if number in _NOT_THERE else 126 if number in _NOT_USABLE else 0
    if program is None:
        what = f"working directory {workdir}" if workdir is not None else str(failure.filename or "start")
        return (code if workdir is not None else 0), f"{what}: {why}"[:_SENTENCE_MAX]
    if number == errno.ENOENT and "/" not in program:
        why = "command not found"
    elif number == errno.ENOENT and os.path.exists(program):
        why = "the interpreter that its first line names is not there"
    elif number == errno.ENOEXEC:
        why = "no program that can be run here (a script needs #! and an interpreter in its first line)"
    return code, f"{program[:200]}: {why}"[:_SENTENCE_MAX]
