/* The databases that sessions of this process write in. */
#ifndef FIREBIRD_CDC_DATABASES_H
#define FIREBIRD_CDC_DATABASES_H

#include <stdatomic.h>
#include <stdint.h>

#include "bridge_api.h"
#include "counters.h"
#include "journal.h"

struct fbc_database {
    struct fbc_database *next;
    unsigned id;    /* from 1, in this process */
    char path[256]; /* the engine tells no longer ones */
    unsigned char guid[16];
    unsigned sessions;           /* that are there; with the databases locked */
    struct fbc_gap gap;          /* counted here, not in the folder; with the databases locked */
    atomic_int ignores_errors;   /* or did once: see fbc_host_engine_propagates_errors */
    atomic_int heeds_errors;     /* or did once */
    _Atomic(uint64_t) table_ddl; /* ticket of the last DDL of tables, by this process; 0: none */
    _Atomic(struct fbc_tally *) tally;          /* see fbc_database_tally */
    _Atomic(struct fbc_shared_writer *) shared; /* journals of small transactions: null: none yet */
};

/* fbc_database_enter finds or adds the database, and counts one more session there, until
 * fbc_database_leave; the entry lives as long as the process. Null, with ERROR set: no memory. */
struct fbc_database *fbc_database_enter(const char *path, const unsigned char *guid,
                                        struct fbc_error *error);
void fbc_database_leave(struct fbc_database *database);

/* fbc_database_key returns what tells it from others in the page that processes share; never 0. */
uint64_t fbc_database_key(const struct fbc_database *database);

/* fbc_database_tally returns where things of DATABASE are counted; null as long as nothing can be.
 * A null DATABASE is one that is not known. */
struct fbc_tally *fbc_database_tally(struct fbc_database *database);

/* Null, empty and zeros for an ID that there is not. */
struct fbc_database *fbc_database_by_id(uint32_t id);
const char *fbc_database_path(uint32_t id);
const unsigned char *fbc_database_guid(uint32_t id);

/* fbc_databases_lock keeps databases from being added and their gaps from being counted, and
 * returns the first one. Taken before the folder and the tickets, which see. */
struct fbc_database *fbc_databases_lock(void);
void fbc_databases_unlock(void);

#endif
