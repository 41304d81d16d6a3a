"""Adapters for the ports, by what the site says."""

from events.ids import ClusterId
from events.kafka import KafkaCommandLog, KafkaEventLog
from events.kafka_topics import KafkaSite
from events.log import CommandLog, EventLog
from events.postgres import PostgresCommandLog, PostgresEventLog
from projections import database
from scheduler import control
from signalboxd.site import KafkaLogSite, Site


def open_logs(site: Site, role: str) -> tuple[EventLog, CommandLog]:
    """The two logs of the site's cluster, not opened yet. `role` shows in Postgres' list of sessions."""
    cluster = ClusterId(site.cluster)
    if isinstance(site.log, KafkaLogSite):
        where = kafka_site(site.log)
        return KafkaEventLog(where, cluster), KafkaCommandLog(where, cluster)
    name = f"signalbox-log-{role}"
    return (
        PostgresEventLog(site.postgres, cluster, application_name=name),
        PostgresCommandLog(site.postgres, cluster, application_name=name),
    )


def kafka_site(log: KafkaLogSite) -> KafkaSite:
    return KafkaSite(
        bootstrap=log.bootstrap,
        prefix=log.prefix,
        partitions={ClusterId(name): place for name, place in log.partitions.items()},
        replication=log.replication,
        development=log.development,
    )


async def migrate(site: Site) -> None:
    """Make the schemas and the logs, where they are not there. Never changes what is."""
    await control.migrate(site.postgres)
    connection = await database.connect(site.postgres)
    try:
        await database.migrate(connection)
    finally:
        await connection.close()
    events, commands = open_logs(site, "migrate")
    try:
        await events.open(create=True)
        await commands.open(create=True)
    finally:
        await events.close()
        await commands.close()
