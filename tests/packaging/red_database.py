"""Configuration files of a server that runs the RED Database connector."""

# As the RED Database manual has it, chapter 15, in a file that somebody looks after.
RED_DATABASE_PLUGINS = """\
# РЕД База Данных
Plugin = UDR {
    Module = $(dir_plugins)/udr_engine   # ours since 3.0
}

Plugin = Debezium_Connector {
        Module = $(dir_plugins)/debezium_connector
        Config = Debezium_Connector_config
}

Config = Debezium_Connector_config {
        JarDirs = $(this)/debezium
}
"""
RED_DATABASE_REPLICATION = """\
database
{
        plugin = Debezium_Connector
}
"""
# The manual's other example, in which databases are named.
RED_DATABASE_TWO_DATABASES = """\
database = /your/db.fdb
{
        plugin = Debezium_Connector
}

database = /var/db/rdb.fdb
{
        plugin = Debezium_Connector
}
"""
