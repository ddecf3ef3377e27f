/* Completed definitions of tables as files, so that a process which has joined others under Classic
 * need not ask for what another one has found out (native/join.h).
 *
 * Each is the file definitions/<database>-<generation>-<checksum> in .firebird-cdc, complete or not
 * at all. What is remembered so counts as long as what a process remembers by itself: until the
 * generation of the system tables moves on, and for those who saw what happened since: a bridge
 * that finds nobody else begins with none (journal/folder/kept_definitions.py).
 */
#ifndef FIREBIRD_CDC_DEFINITIONS_H
#define FIREBIRD_CDC_DEFINITIONS_H

#include <stddef.h>
#include <stdint.h>

#include "databases.h"

/* fbc_definition_keep keeps the complete form of the definition SHOWN of a table in DATABASE, and
 * removes those of earlier generations of it. Nobody relies on that it succeeds. */
void fbc_definition_keep(const struct fbc_database *database, uint64_t generation,
                         const char *shown, size_t shown_length, const char *complete,
                         size_t length);

/* fbc_definition_find returns it, for the caller to free; null if it is not kept. */
char *fbc_definition_find(const struct fbc_database *database, uint64_t generation,
                          const char *shown, size_t shown_length, size_t *length);

#endif
