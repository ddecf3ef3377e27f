/* Values of sequences, which the engine tells per attachment and outside transactions: the next
 * journal of the session that is committed takes them along. */
#define _GNU_SOURCE
#include "transaction.h"

#include <stdlib.h>
#include <string.h>

#include "host.h"

int fbc_txn_write_sequences(struct fbc_transaction *txn, struct fbc_error *error) {
    for (struct fbc_sequence *sequence = txn->session->sequences; sequence;
         sequence = sequence->next) {
        if (!sequence->changed ||
            (sequence->written_by == txn->number && sequence->written == sequence->value))
            continue;
        size_t length = strlen(sequence->name);
        char *body = fbc_txn_open_journal(txn, error)
                         ? fbc_record_begin(&txn->journal, 8 + length, error)
                         : NULL;
        if (!body)
            return FBC_FAILED;
        fbc_put64(body, (uint64_t)sequence->value);
        memcpy(body + 8, sequence->name, length);
        fbc_record_end(&txn->journal, FBC_SEQUENCE, 0, 0, 8 + length);
        sequence->written_by = txn->number;
        sequence->written = sequence->value;
    }
    return FBC_OK;
}

void fbc_txn_cut_sequences(struct fbc_transaction *txn) {
    for (struct fbc_sequence *each = txn->session->sequences; each; each = each->next)
        if (each->written_by == txn->number)
            each->written_by = 0;
}

void fbc_txn_commit_sequences(struct fbc_transaction *txn) {
    for (struct fbc_sequence *each = txn->session->sequences; each; each = each->next)
        if (each->written_by == txn->number) {
            each->changed = each->value != each->written;
            each->written_by = 0;
        }
}

void fbc_session_set_sequence(struct fbi_replicated_session *self, struct fbi_status *status,
                              const char *name, int64_t value) {
    struct fbc_session *session = (struct fbc_session *)self;
    (void)status;
    struct fbc_sequence *sequence = session->sequences;
    while (sequence && strcmp(sequence->name, name) != 0)
        sequence = sequence->next;
    if (!sequence) {
        sequence = calloc(1, sizeof *sequence + strlen(name) + 1);
        if (!sequence) {
            fbc_host_tell("no memory for the value of a sequence; it is not recorded");
            return;
        }
        memcpy(sequence->name, name, strlen(name) + 1);
        sequence->next = session->sequences;
        session->sequences = sequence;
    }
    sequence->value = value;
    sequence->changed = 1;
}

void fbc_session_free_sequences(struct fbc_session *session) {
    while (session->sequences) {
        struct fbc_sequence *sequence = session->sequences;
        session->sequences = sequence->next;
        free(sequence);
    }
}
