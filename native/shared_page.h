/* The page that all processes of a journal folder share: the file tickets in .firebird-cdc, mapped.
 *
 * Its layout is declared here and nowhere else: journal/folder/shared_page.py reads this struct
 * through cffi. It outlives processes and upgrades, so fields keep their places; what is not named
 * is zero.
 */
#ifndef FIREBIRD_CDC_SHARED_PAGE_H
#define FIREBIRD_CDC_SHARED_PAGE_H

#include <stdint.h>

#include "journal.h"

typedef _Atomic(uint64_t) fbc_shared_u64;

/* cffi reads from here */
enum { FBC_SHARED_BYTES = 4096 };

/* Gaps of one database that are counted here, so that they outlive a process. */
struct fbc_gap_slot {
    uint64_t database; /* fbc_database_key; 0: the slot is free */
    uint64_t count;
    int64_t first_us, last_us; /* since 1970, UTC */
};

struct fbc_shared_page {
    fbc_shared_u64 ticket;       /* the last one drawn */
    fbc_shared_u64 accounted;    /* ticket up to which every commit is decided; the bridge's */
    fbc_shared_u64 generation;   /* grows when the system tables of any database change */
    fbc_shared_u64 undecided;    /* journals that can't be decided or published; the bridge's */
    fbc_shared_u64 former;       /* what 0.1 kept there */
    fbc_shared_u64 table_ddl;    /* ticket of the last DDL of tables, */
    fbc_shared_u64 table_ddl_ms; /* when that was, by CLOCK_MONOTONIC, */
    fbc_shared_u64 described;    /* up to which ticket it is described, or can't be; the bridge's */
    fbc_shared_u64 awaited;      /* ticket of such DDL that a transaction waits for, in prepare */
    fbc_shared_u64 table_ddl_database; /* fbc_database_key of the last DDL of tables */
    fbc_shared_u64 failed_syncs;  /* syncs of the whole file system that failed; the bridge's */
    fbc_shared_u64 heartbeat_ms;  /* when the confirmer last came round, by CLOCK_MONOTONIC; */
    fbc_shared_u64 confirmer;     /* its process; 0: nobody confirms; both the bridge's */
    fbc_shared_u64 is_retired;    /* the file has lost its name: nobody may draw tickets from it */
    fbc_shared_u64 unread_ms;     /* when the confirmer met a journal that it can't read, by
                                     CLOCK_MONOTONIC; 0: it reads all; the bridge's */
    fbc_shared_u64 calls;         /* commits of processes without a bridge: a futex that bridges, */
    fbc_shared_u64 shipper_calls; /* and one that shippers wait at: see calls.h */
    uint64_t unused[111];
    struct fbc_gap_slot gaps[96];
};
/* cffi reads to here */

_Static_assert(sizeof(struct fbc_shared_page) == FBC_SHARED_BYTES, "a page of the file tickets");

struct fbc_database;

/* fbc_page returns the page of the journal folder of now; null as long as there is none. Pages stay
 * mapped for ever. */
struct fbc_shared_page *fbc_page(void);

/* ---- Tickets: the order of commits, over all processes -------------------------------------- */

/* fbc_tickets_lock keeps every thread of every process from drawing tickets, and the folder from
 * changing. */
void fbc_tickets_lock(void);
void fbc_tickets_unlock(void);

/* fbc_tickets_are_retired tells whether there is a page from which no ticket may be drawn, and
 * why. */
int fbc_tickets_are_retired(struct fbc_error *error);

/* fbc_tickets_hold tells whether tickets may be drawn from the file that is in use, and keeps it in
 * use until fbc_tickets_release: a ticket is drawn in commit, which can't be refused. It may not
 * where the file was removed or replaced: another process could draw from another one. */
int fbc_tickets_hold(struct fbc_error *error);
void fbc_tickets_release(void);

/* fbc_tickets_held returns how many transactions hold them. */
int fbc_tickets_held(void);

/* fbc_tickets_begin_commit draws a ticket and keeps all others, in every process, from drawing one
 * until fbc_tickets_end_commit: in between the caller marks its journal and hands it over, so that
 * whoever sees a ticket drawn also finds its journal. Microseconds, never a sync. CHANGES_TABLES:
 * it is a DDL that may, in DATABASE. */
uint64_t fbc_tickets_begin_commit(struct fbc_database *database, int changes_tables);
void fbc_tickets_end_commit(void);

/* fbc_tickets_last returns the last ticket drawn by any process. */
uint64_t fbc_tickets_last(void);

/* fbc_tickets_next returns the last ticket drawn plus 1, for the seal of a transaction in the
 * folder of now; 0 where there is none. What the transaction builds on has drawn its ticket by
 * then, and itself draws a later one: so seals tell an order, too. */
uint64_t fbc_tickets_next(void);

/* ---- The system tables ---------------------------------------------------------------------- */

/* fbc_await_described waits until the bridge has read what the last DDL of tables in DATABASE made
 * of them, by any process; with ALSO_LATER, also those that are committed meanwhile. At most
 * PATIENCE_MS, and not if the last such commit anywhere is longer ago. */
void fbc_await_described(const struct fbc_database *database, int also_later, int patience_ms);

/* The catalogue's generation in the folder of now: grows with every committed DDL. */
uint64_t fbc_generation(void);
void fbc_new_generation(void);

#endif
