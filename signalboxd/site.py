"""A site: where the log, Postgres and the leader are. One TOML file that all processes of an installation read.

cluster = "main"
postgres = "postgresql://…"
tokens = "/etc/signalbox/tokens.json"       # read by apis
agent_token_file = "/etc/signalbox/agent-token"
schedulers = ["10.0.0.1:7500"]              # read by agents
[log]
kind = "postgres"                           # or "kafka", with:
bootstrap = "k1:9092,k2:9092"
prefix = "signalbox"
replication = 3
development = false                         # waives the checks that need three brokers (P-5)
[log.partitions]
main = 0
"""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class SiteError(Exception):
    """The site file cannot be used; says where and why."""


class PostgresLogSite(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["postgres"] = "postgres"


class KafkaLogSite(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["kafka"]
    bootstrap: Annotated[str, Field(min_length=1)]
    prefix: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,100}$")] = "signalbox"
    replication: Annotated[int, Field(ge=1, le=9)] = 3
    development: bool = False
    partitions: dict[str, Annotated[int, Field(ge=0)]]


class Site(BaseModel):
    """One installation, as one process sees it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cluster: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]
    postgres: Annotated[str, Field(min_length=1)]
    tokens: Path | None = None
    agent_token_file: Path | None = None
    schedulers: tuple[str, ...] = ()
    log: Annotated[PostgresLogSite | KafkaLogSite, Field(discriminator="kind")] = PostgresLogSite()

    def agent_token(self) -> str | None:
        """The token that agents bring; None where agents are not asked for one."""
        return self.agent_token_file.read_text().strip() if self.agent_token_file is not None else None


def read_site(path: Path) -> Site:
    """The site in a file. Raises SiteError, naming the field."""
    try:
        site = Site.model_validate(tomllib.loads(path.read_text()))
    except OSError as error:
        raise SiteError(f"{path}: {error.strerror}") from None
    except tomllib.TOMLDecodeError as error:
        raise SiteError(f"{path}: {error}") from None
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise SiteError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}") from None
    if isinstance(site.log, KafkaLogSite) and site.cluster not in site.log.partitions:
        raise SiteError(f"{path}: log.partitions: cluster {site.cluster} has no partition (P-2)")
    return site


def write_site(path: Path, site: Site) -> None:
    """Write what `read_site` reads."""
    log = site.log
    lines = [f"cluster = {_text(site.cluster)}", f"postgres = {_text(site.postgres)}"]
    if site.tokens is not None:
        lines.append(f"tokens = {_text(str(site.tokens))}")
    if site.agent_token_file is not None:
        lines.append(f"agent_token_file = {_text(str(site.agent_token_file))}")
    lines.append(f"schedulers = [{', '.join(map(_text, site.schedulers))}]")
    lines += ["", "[log]", f"kind = {_text(log.kind)}"]
    if isinstance(log, KafkaLogSite):
        lines += [f"bootstrap = {_text(log.bootstrap)}", f"prefix = {_text(log.prefix)}"]
        lines += [f"replication = {log.replication}", f"development = {str(log.development).lower()}"]
        lines += ["[log.partitions]", *(f"{_text(name)} = {place}" for name, place in log.partitions.items())]
    path.write_text("\n".join(lines) + "\n")


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
