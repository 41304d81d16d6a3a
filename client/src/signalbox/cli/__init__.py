"""The `signalbox` command: what Slurm's users expect, over the client. `main` is the console script.

Exit codes: 0 done; 2 the command line, the file or the profile is wrong; 3 refused; 4 not reachable; 5 an error of the
service; 130 interrupted. `run` and `submit --wait` end with the job's own exit code (signalbox.cli.ending).
"""

from signalbox.cli.app import main

__all__ = ["main"]
