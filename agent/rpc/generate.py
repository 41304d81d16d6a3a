"""Makes the Python code of the proto: `python -m agent.rpc.generate [DIRECTORY]`, from the repository's root."""

import sys
from pathlib import Path

PROTO = "agent/rpc/signalbox/v1/scheduler.proto"


def generate(root: Path, out: Path) -> None:
    """Write scheduler_pb2.py and its stub below `out`. Needs grpcio-tools, mypy-protobuf."""
    from grpc_tools import protoc

    plugin = Path(sys.executable).with_name("protoc-gen-mypy")
    options = ["protoc", f"-I{root}", f"--plugin=protoc-gen-mypy={plugin}"]
    options += [f"--{kind}_out={out}" for kind in ("python", "mypy")]
    if protoc.main([*options, PROTO]) != 0:
        raise SystemExit("protoc failed")


if __name__ == "__main__":
    generate(Path.cwd(), Path(sys.argv[1]) if len(sys.argv) > 1 else Path.cwd())
