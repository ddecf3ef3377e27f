/* Savepoints of a transaction: where each began in its journal, and whether what the engine tells
 * of them is enough to cut it rightly. */
#define _GNU_SOURCE
#include "transaction.h"

#include <stdlib.h>

void fbc_txn_start_savepoint(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    struct fbc_error error;
    if (txn->savepoint_count == txn->savepoint_capacity) {
        unsigned capacity = txn->savepoint_count ? 2 * txn->savepoint_count : 8;
        struct fbc_position *savepoints = realloc(txn->savepoints, capacity * sizeof *savepoints);
        if (!savepoints) {
            fbc_error_set(&error, 0, "no memory for a savepoint");
            fbc_txn_refuse(txn, status, &error);
            return;
        }
        txn->savepoints = savepoints;
        txn->savepoint_capacity = capacity;
    }
    if (!txn->broken && !fbc_txn_open_journal(txn, &error))
        fbc_txn_refuse(txn, status, &error);
    txn->savepoints[txn->savepoint_count++] = txn->journal.at;
}

void fbc_txn_release_savepoint(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    (void)status;
    if (txn->savepoint_count)
        txn->savepoint_count--;
    txn->is_rootless |= !txn->savepoint_count;
}

void fbc_txn_rollback_savepoint(struct fbi_replicated_transaction *self,
                                struct fbi_status *status) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    struct fbc_error error;
    if (!txn->savepoint_count) {
        fbc_error_set(&error, 0, "the engine rolled back a savepoint that it never announced");
        fbc_txn_refuse(txn, status, &error);
        return;
    }
    struct fbc_position *savepoint = &txn->savepoints[--txn->savepoint_count];
    txn->savepoint_rollbacks++;
    txn->is_rootless |= !txn->savepoint_count;
    if (!txn->has_journal)
        return;
    if (txn->broken)
        fbc_txn_open_journal(txn, &error); /* it stays broken, but is not sealed */
    else if (!fbc_txn_unseal(txn, &error) || !fbc_journal_cut(&txn->journal, savepoint, &error))
        fbc_txn_refuse(txn, status, &error);
    fbc_txn_cut_sequences(txn);
}

/* Tell that the journal was cut at the wrong place. The engine does not tell of a savepoint that it
 * ends out of turn: RELEASE SAVEPOINT ... ONLY, or the same name set again while a later one
 * exists. */
static int cut_wrongly(struct fbc_error *error) {
    fbc_error_set(
        error, 0,
        "a savepoint was released out of turn (RELEASE SAVEPOINT ... ONLY, or a name that "
        "was set again) and another one rolled back, which the engine does not report "
        "exactly enough to record the changes that remain");
    return FBC_FAILED;
}

int fbc_txn_savepoints_add_up(const struct fbc_transaction *txn, struct fbc_error *error) {
    unsigned own = !txn->is_rootless;
    return txn->savepoint_count <= own || !txn->savepoint_rollbacks ? FBC_OK : cut_wrongly(error);
}

int fbc_txn_root_was_released(struct fbc_transaction *txn, struct fbc_error *error) {
    enum { LARGE = 2048 };
    return !txn->savepoint_rollbacks || !txn->savepoint_count || txn->changes >= LARGE ||
                   fbc_session_new_changes(txn) >= LARGE
               ? FBC_OK
               : cut_wrongly(error);
}
