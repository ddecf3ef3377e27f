/* The time that capture takes in a user's transaction: each of the engine's calls for it comes
 * through here. */
#define _GNU_SOURCE
#include "transaction.h"

/* To look at the clock twice takes as long as a twentieth of a short row: of a transaction's calls
 * for rows the first ones are timed, then one in 16, at random, which stands for all. */
enum { TIMED_CALLS = 16, SAMPLED_BITS = 4 };

static void timed_prepare(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    uint64_t since = fbc_clock_ns();
    fbc_txn_prepare(self, status);
    fbc_observe(fbc_txn_tally(fbc_txn_of(self)), FBC_TIME_PREPARE, fbc_clock_ns() - since);
}

static void timed_commit(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    uint64_t since = fbc_clock_ns();
    fbc_txn_commit(self, status);
    fbc_observe(fbc_txn_tally(fbc_txn_of(self)), FBC_TIME_COMMIT, fbc_clock_ns() - since);
}

static void timed_rollback(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    uint64_t since = fbc_clock_ns();
    fbc_txn_rollback(self, status);
    fbc_observe(fbc_txn_tally(fbc_txn_of(self)), FBC_TIME_ROLLBACK, fbc_clock_ns() - since);
}

static void timed_dispose(struct fbi_replicated_transaction *self) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    if (txn->calls)
        fbc_observe(fbc_txn_tally(txn), FBC_TIME_ROWS, txn->calls_ns);
    fbc_txn_dispose(self);
}

/* The time at the beginning of a call for rows; 0: it is not looked at. */
static uint64_t call_begins(struct fbi_replicated_transaction *self) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    uint32_t hash = (uint32_t)++txn->calls * 2654435761u; /* 2^32 over the golden ratio */
    return txn->calls <= TIMED_CALLS || !(hash >> (32 - SAMPLED_BITS)) ? fbc_clock_ns() : 0;
}

static void call_ends(struct fbi_replicated_transaction *self, uint64_t since) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    if (since)
        txn->calls_ns += (fbc_clock_ns() - since) << (txn->calls <= TIMED_CALLS ? 0 : SAMPLED_BITS);
}

static void timed_start_savepoint(struct fbi_replicated_transaction *self,
                                  struct fbi_status *status) {
    uint64_t since = call_begins(self);
    fbc_txn_start_savepoint(self, status);
    call_ends(self, since);
}

static void timed_rollback_savepoint(struct fbi_replicated_transaction *self,
                                     struct fbi_status *status) {
    uint64_t since = call_begins(self);
    fbc_txn_rollback_savepoint(self, status);
    call_ends(self, since);
}

static void timed_insert(struct fbi_replicated_transaction *self, struct fbi_status *status,
                         const char *table, struct fbi_replicated_record *record) {
    uint64_t since = call_begins(self);
    fbc_txn_change_row(self, status, table, NULL, record);
    call_ends(self, since);
}

static void timed_update(struct fbi_replicated_transaction *self, struct fbi_status *status,
                         const char *table, struct fbi_replicated_record *old_record,
                         struct fbi_replicated_record *new_record) {
    uint64_t since = call_begins(self);
    fbc_txn_change_row(self, status, table, old_record, new_record);
    call_ends(self, since);
}

static void timed_delete(struct fbi_replicated_transaction *self, struct fbi_status *status,
                         const char *table, struct fbi_replicated_record *record) {
    uint64_t since = call_begins(self);
    fbc_txn_change_row(self, status, table, record, NULL);
    call_ends(self, since);
}

static void timed_execute_intl(struct fbi_replicated_transaction *self, struct fbi_status *status,
                               unsigned charset, const char *sql) {
    uint64_t since = call_begins(self);
    fbc_txn_execute(self, status, charset, sql);
    call_ends(self, since);
}

static void timed_execute(struct fbi_replicated_transaction *self, struct fbi_status *status,
                          const char *sql) {
    enum { CHARSET_UTF8 = 4 };
    timed_execute_intl(self, status, CHARSET_UTF8, sql);
}

const struct fbi_replicated_transaction_vt fbc_transaction_vt = {
    .version = FBI_REPLICATED_TRANSACTION_VERSION,
    .dispose = timed_dispose,
    .prepare = timed_prepare,
    .commit = timed_commit,
    .rollback = timed_rollback,
    .start_savepoint = timed_start_savepoint,
    .release_savepoint = fbc_txn_release_savepoint,
    .rollback_savepoint = timed_rollback_savepoint,
    .insert_record = timed_insert,
    .update_record = timed_update,
    .delete_record = timed_delete,
    .execute_sql = timed_execute,
    .execute_sql_intl = timed_execute_intl,
};
