/* The kind of a DDL statement, by its first words. */
#ifndef FIREBIRD_CDC_DDL_WORDS_H
#define FIREBIRD_CDC_DDL_WORDS_H

enum fbc_table_ddl { FBC_NO_TABLE_DDL, FBC_TABLE_DDL, FBC_INDEX_DDL };

/* fbc_table_ddl_of tells whether the DDL statement SQL may change a table. */
enum fbc_table_ddl fbc_table_ddl_of(const char *sql);

#endif
