"""The committed code of the proto is what the proto says."""

from pathlib import Path

from agent.rpc.generate import PROTO, generate

ROOT = Path(__file__).parents[2]


def test_the_generated_code_is_current(tmp_path: Path) -> None:
    """Generating again gives the committed bytes: nobody edited the proto, or the code, alone."""
    generate(ROOT, tmp_path)
    made = sorted((tmp_path / PROTO).parent.glob("*_pb2.py*"))
    assert [path.name for path in made] == ["scheduler_pb2.py", "scheduler_pb2.pyi"]
    for path in made:
        assert path.read_text() == (ROOT / path.relative_to(tmp_path)).read_text()
