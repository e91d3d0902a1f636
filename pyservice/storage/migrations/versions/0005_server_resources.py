"""Adds the resources of dynamic servers, so that the quotas of a group can be summed up."""

import sqlalchemy as sa
from alembic import op

from pyservice.pb.hosting.v1.servers_pb2 import Server

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    for name in ("cpu_millicores", "memory_mb"):
        column = sa.Column(name, sa.BigInteger(), nullable=False, server_default="0")
        op.add_column("servers", column)
    connection = op.get_bind()
    live = sa.text("SELECT server_id, record FROM servers WHERE destroy_ms IS NULL")
    change = sa.text(
        "UPDATE servers SET cpu_millicores = :cpu, memory_mb = :memory WHERE server_id = :id"
    )
    for server_id, record in connection.execute(live).all():
        resources = Server.FromString(record).resources
        values = {"cpu": resources.cpu, "memory": resources.memory, "id": server_id}
        connection.execute(change, values)
