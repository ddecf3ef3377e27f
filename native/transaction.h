/* Sessions and transactions as the plugin keeps them, for the files that each carry one subject of
 * them. Who else works with them sees the engine's interfaces alone: session.h. */
#ifndef FIREBIRD_CDC_TRANSACTION_H
#define FIREBIRD_CDC_TRANSACTION_H

#include <stdatomic.h>
#include <stdint.h>

#include "bridge_api.h"
#include "counters.h"
#include "firebird_abi.h"
#include "host.h"
#include "journal.h"
#include "rows.h"
#include "shared_journal.h"
#include "slots.h"
#include "sync.h"

struct fbc_sequence {
    struct fbc_sequence *next;
    int64_t value;
    int changed;         /* since it was last in a journal that was committed */
    uint64_t written_by; /* transaction whose journal has it, not committed yet; 0: none */
    int64_t written;     /* the value there */
    char name[];
};

struct fbc_session {
    struct fbi_replicated_session base;
    atomic_int references;
    void *owner;
    const struct fbc_settings *settings;
    const char *refusal;               /* why this engine can't be served, or null */
    struct fbi_attachment *attachment; /* borrowed: the session belongs to it */
    struct fbc_database *database;     /* null until the first transaction */
    struct fbc_error unidentified;     /* why it is not known exactly which one; empty: it is */
    int propagates_errors;             /* the engine does, and goes on asking us */
    int is_rootless;                   /* its transactions are, as the engine tells of them */
    char user[1024];                   /* UTF-8 */
    struct fbc_shape *shapes;
    struct fbc_sequence *sequences;
    uint64_t last_handed_over; /* 0: nothing to wait for */
    uint64_t database_inode;   /* 0: unknown */
    uint64_t counted_changes;  /* of rows, by the attachment, when they were last counted */
    int64_t last_refused;      /* number of a transaction that could not begin; 0: none */
};

/* A table definition in a journal. */
struct fbc_table_use {
    uint64_t shape;                /* id of its shape */
    int is_complete;               /* it was when it was written */
    struct fbc_question *question; /* for what is missing; null: none */
};

struct fbc_transaction {
    struct fbi_replicated_transaction base;
    struct fbc_session *session;
    struct fbi_transaction *engine; /* borrowed: ours ends before it */
    uint64_t number;
    struct fbc_journal journal;
    struct fbc_sync sync;   /* of the sealed journal, begun in prepare */
    struct fbc_place place; /* in a shared journal, since prepare */
    struct fbc_slot slot;   /* as long as all of it is in memory */
    int needs_own;          /* it may not share a journal */
    int has_journal;
    int broken;     /* a change of it could not be recorded: prepare must refuse */
    int is_lenient; /* or let it through and leave a gap: no callback gives an error */
    int is_gap;     /* the journal, sealed, holds a gap in place of the changes */
    int folder;     /* where an ownerless journal lies; -1: it has an owner */
    int names;      /* the folder, to sync the name of a journal of its own; -1: none is to be */
    int has_ddl;
    int changes_tables; /* a DDL of it may */
    int changes_indexes;
    int is_committing_ddl;        /* between prepare and what comes after it */
    uint64_t changes;             /* that were reported, recorded or not */
    int is_unresolved;            /* a table definition stays incomplete after the seal */
    struct fbc_error error;       /* why it is broken */
    struct fbc_table_use *tables; /* by table number - 1 */
    uint32_t tables_used;         /* also of definitions that were cut off again */
    uint32_t table_capacity;
    struct fbi_status *status;       /* for our own questions to the engine */
    struct fbc_position *savepoints; /* where each began */
    unsigned savepoint_count, savepoint_capacity;
    unsigned savepoint_rollbacks;
    int is_rootless; /* no savepoint is the transaction's own, that is left to the commit */
    int is_ended;    /* commit or rollback was called */
    int has_tickets; /* it may draw one: see fbc_tickets_hold */
    int is_limited;  /* the journal may not take more disk than connector.journal.max.bytes */
    uint64_t calls, calls_ns; /* for rows, statements and savepoints; the time partly sampled */
};

static inline struct fbc_transaction *fbc_txn_of(struct fbi_replicated_transaction *self) {
    return (struct fbc_transaction *)self;
}

/* ---- transaction.c ------------------------------------------------------------------------ */

/* fbc_report gives TEXT to the engine as the error of the call that STATUS came with. */
void fbc_report(struct fbi_status *status, const char *text);

/* fbc_session_count_failure counts a transaction that was refused or lost where somebody finds
 * it. */
void fbc_session_count_failure(const struct fbc_session *session, enum fbc_counter kind);

/* fbc_session_is_lenient tells whether what can't be recorded is let through: the user wants that,
 * or the engine would stop asking us at the first error. */
int fbc_session_is_lenient(const struct fbc_session *session);

struct fbc_tally *fbc_txn_tally(const struct fbc_transaction *txn);

/* fbc_txn_new makes the transaction NUMBER of SESSION. Null, with ERROR set: no memory, or it can't
 * be recorded and must not begin. */
struct fbc_transaction *fbc_txn_new(struct fbc_session *session, struct fbi_transaction *engine,
                                    int64_t number, struct fbc_error *error);

/* fbc_txn_refuse remembers the first failure of TXN, and tells the engine unless it is to be let
 * through. */
void fbc_txn_refuse(struct fbc_transaction *txn, struct fbi_status *status,
                    const struct fbc_error *error);

/* The engine's calls. OLD_RECORD is null for an insert, NEW_RECORD for a delete. */
void fbc_txn_change_row(struct fbi_replicated_transaction *self, struct fbi_status *status,
                        const char *table, struct fbi_replicated_record *old_record,
                        struct fbi_replicated_record *new_record);
void fbc_txn_execute(struct fbi_replicated_transaction *self, struct fbi_status *status,
                     unsigned charset, const char *sql);
void fbc_txn_prepare(struct fbi_replicated_transaction *self, struct fbi_status *status);
void fbc_txn_commit(struct fbi_replicated_transaction *self, struct fbi_status *status);
void fbc_txn_rollback(struct fbi_replicated_transaction *self, struct fbi_status *status);
void fbc_txn_dispose(struct fbi_replicated_transaction *self);

/* ---- transaction_journal.c ---------------------------------------------------------------- */

/* fbc_txn_begin_journal begins TXN's journal in the file FD, which it owns from then on. */
int fbc_txn_begin_journal(struct fbc_transaction *txn, int fd, const char *name,
                          const unsigned char *uuid, struct fbc_error *error);

/* fbc_txn_open_journal makes sure that TXN has a journal that can take a record. */
int fbc_txn_open_journal(struct fbc_transaction *txn, struct fbc_error *error);

/* fbc_txn_new_file makes a file for a journal of TXN's own, with a random UUID and NAME, be it
 * where no bridge ran; returns its descriptor, -1 with ERROR set. */
int fbc_txn_new_file(struct fbc_transaction *txn, char name[40], unsigned char uuid[16],
                     struct fbc_error *error);

/* fbc_txn_leave_names closes the descriptor that the name of TXN's own journal is synced by. */
void fbc_txn_leave_names(struct fbc_transaction *txn);

/* fbc_txn_start_sync begins to sync the journal of TXN's own, if it is to survive a power cut. */
void fbc_txn_start_sync(struct fbc_transaction *txn);

/* fbc_txn_is_sealed tells whether TXN was prepared, and nothing was recorded since. */
int fbc_txn_is_sealed(const struct fbc_transaction *txn);

/* fbc_txn_await_sync waits until what prepare wrote is on disk: in another shared journal if a sync
 * of the first one fails, and then in one of its own. Returns 0 or an errno. */
int fbc_txn_await_sync(struct fbc_transaction *txn);

/* fbc_txn_is_empty tells whether nothing but BEGIN is recorded of TXN. */
int fbc_txn_is_empty(const struct fbc_transaction *txn);

/* fbc_txn_seal writes what is left of TXN, its seal and the definitions that were completed, and
 * starts the sync: all that can fail before the commit. */
int fbc_txn_seal(struct fbc_transaction *txn, struct fbc_error *error);

/* fbc_txn_unseal takes a seal back, durably, before anything but commit follows a prepare. Also
 * fails where the sync did that the prepare began: what it was to write would be missing in the
 * next one's. */
int fbc_txn_unseal(struct fbc_transaction *txn, struct fbc_error *error);

/* fbc_txn_drop_journal removes the journal of TXN so that no power cut brings it back: it is made
 * void, and where a sync of it has failed, its name must be gone from the disk. If neither can be
 * had, later transactions are refused until the disk works. */
int fbc_txn_drop_journal(struct fbc_transaction *txn);

/* fbc_txn_shrink cuts the journal of TXN, which stays broken: nobody needs what is in it, and
 * others the room. */
void fbc_txn_shrink(struct fbc_transaction *txn);

/* fbc_txn_account_less gives back the room on disk that TXN's journal has beyond LEFT bytes. */
void fbc_txn_account_less(struct fbc_transaction *txn, uint64_t left);

int fbc_txn_needs_sync(const struct fbc_transaction *txn);

/* Once per transaction, however often they are called: see fbc_tickets_hold. */
int fbc_txn_hold_tickets(struct fbc_transaction *txn, struct fbc_error *error);
void fbc_txn_release_tickets(struct fbc_transaction *txn);

/* ---- gap.c -------------------------------------------------------------------------------- */

/* fbc_txn_seal_gap puts a sealed gap in the place of what TXN changed. Where nothing can be written
 * there is none afterwards, and commit counts it. A transaction that changed nothing leaves
 * nothing. */
void fbc_txn_seal_gap(struct fbc_transaction *txn);

/* fbc_txn_leave_ownerless ends the work on a gap that was written where no bridge ran. Whoever
 * works in its folder next finds it; returns 0 if that is the bridge of this process, which has
 * been started since. */
int fbc_txn_leave_ownerless(struct fbc_transaction *txn, int is_synced);

/* ---- identify.c --------------------------------------------------------------------------- */

/* fbc_session_identify learns which database TXN's session is in and who works there, again where
 * the engine did not tell. Only for lack of memory is no database known afterwards. */
void fbc_session_identify(struct fbc_transaction *txn, struct fbc_error *error);

/* fbc_session_new_changes returns the rows that the attachment has changed, in all tables, captured
 * or not, since this was last asked. A number that is too large where the engine does not tell. */
uint64_t fbc_session_new_changes(struct fbc_transaction *txn);

/* ---- savepoints.c ------------------------------------------------------------------------- */

/* The engine's calls. */
void fbc_txn_start_savepoint(struct fbi_replicated_transaction *self, struct fbi_status *status);
void fbc_txn_release_savepoint(struct fbi_replicated_transaction *self, struct fbi_status *status);
void fbc_txn_rollback_savepoint(struct fbi_replicated_transaction *self, struct fbi_status *status);

/* fbc_txn_savepoints_add_up tells, in prepare, whether the journal was cut in the right places:
 * the engine has released every savepoint but the transaction's own by then. */
int fbc_txn_savepoints_add_up(const struct fbc_transaction *txn, struct fbc_error *error);

/* fbc_txn_root_was_released tells the same in commit. Between prepare and commit the engine
 * releases the transaction's own savepoint. If that did not come, what was left was another one, as
 * there is none of its own under NO AUTO UNDO. Only that of a large transaction may be given up
 * without a word (Savepoint::rollforward); large is what it changed in tables that are not
 * captured, too. */
int fbc_txn_root_was_released(struct fbc_transaction *txn, struct fbc_error *error);

/* ---- sequences.c -------------------------------------------------------------------------- */

/* The engine's call. */
void fbc_session_set_sequence(struct fbi_replicated_session *self, struct fbi_status *status,
                              const char *name, int64_t value);

/* fbc_txn_write_sequences appends the last values of the session's sequences that no journal has
 * yet. */
int fbc_txn_write_sequences(struct fbc_transaction *txn, struct fbc_error *error);

/* fbc_txn_cut_sequences has the values that TXN wrote written again: its journal was cut. */
void fbc_txn_cut_sequences(struct fbc_transaction *txn);

/* fbc_txn_commit_sequences has the values that TXN wrote not written again, until they change. */
void fbc_txn_commit_sequences(struct fbc_transaction *txn);

void fbc_session_free_sequences(struct fbc_session *session);

/* ---- shapes.c ----------------------------------------------------------------------------- */

/* fbc_txn_shape returns the shape of TABLE; made anew from RECORD after a DDL, when its definition
 * may have become complete, and when IS_STALE says that the one at hand does not fit. */
struct fbc_shape *fbc_txn_shape(struct fbc_transaction *txn, const char *table, int is_stale,
                                struct fbi_replicated_record *record, struct fbc_error *error);
void fbc_session_free_shapes(struct fbc_session *session);

/* fbc_txn_table_number returns the number of SHAPE in the journal, 0 with ERROR set for none; its
 * TABLE record is written at the first use, and what that can't show is asked for. */
unsigned fbc_txn_table_number(struct fbc_transaction *txn, const struct fbc_shape *shape,
                              struct fbc_error *error);
void fbc_txn_free_tables(struct fbc_transaction *txn);

/* fbc_txn_await_answers waits until no attachment of ours is open any more for a question of
 * TXN. */
void fbc_txn_await_answers(struct fbc_transaction *txn);

/* fbc_txn_catalogue gathers the definitions of TXN that were completed since they were written, in
 * a buffer that the caller frees. What can't be had is left to the bridge, after the commit. */
struct fbc_appendix fbc_txn_catalogue(struct fbc_transaction *txn);

/* ---- timing.c ----------------------------------------------------------------------------- */

extern const struct fbi_replicated_transaction_vt fbc_transaction_vt;

#endif
