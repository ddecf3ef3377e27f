/* Transactions: row changes, DDL, and how they end. */
#define _GNU_SOURCE
#include "transaction.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "calls.h"
#include "catalogue.h"
#include "commits.h"
#include "ddl_words.h"
#include "events.h"
#include "failpoint.h"
#include "gap_counts.h"
#include "host.h"
#include "shared_page.h"

enum { DESCRIBED_MS = 500 }; /* and a DDL for the one before it to be described */

void fbc_report(struct fbi_status *status, const char *text) {
    const intptr_t vector[] = {FBI_ARG_GDS, FBI_ISC_RANDOM, FBI_ARG_STRING, (intptr_t)text,
                               FBI_ARG_END};
    status->vt->set_errors(status, vector);
}

void fbc_session_count_failure(const struct fbc_session *session, enum fbc_counter kind) {
    fbc_host_count_failure(session->settings, session->database, kind);
}

/* Count TXN, of whose changes nothing is left, and have a gap marked for it. */
static void count_lost(const struct fbc_transaction *txn) {
    fbc_session_count_failure(txn->session, FBC_GAPS);
    fbc_gaps_count(txn->session->database, txn->error.text);
}

struct fbc_tally *fbc_txn_tally(const struct fbc_transaction *txn) {
    return fbc_database_tally(txn->session->database);
}

void fbc_txn_refuse(struct fbc_transaction *txn, struct fbi_status *status,
                    const struct fbc_error *error) {
    if (!txn->broken) {
        txn->broken = 1;
        txn->error = *error;
        fbc_txn_shrink(txn);
        if (!txn->is_lenient)
            fbc_session_count_failure(txn->session, FBC_REFUSED);
    }
    if (txn->is_lenient)
        return;
    char text[1024];
    snprintf(text, sizeof text,
             "firebird-cdc: %s; transaction %llu can't be committed, no change of it is lost "
             "silently. Roll it back, mend the cause and try again",
             txn->error.text, (unsigned long long)txn->number);
    fbc_report(status, text);
}

static struct fbc_source source_of(struct fbc_transaction *txn) {
    return (struct fbc_source){txn->session->attachment, txn->engine, txn->status};
}

static int is_system_table(const char *table) {
    return table[3] == '$' && (strncmp(table, "RDB", 3) == 0 || strncmp(table, "MON", 3) == 0 ||
                               strncmp(table, "SEC", 3) == 0);
}

void fbc_txn_change_row(struct fbi_replicated_transaction *self, struct fbi_status *status,
                        const char *table, struct fbi_replicated_record *old_record,
                        struct fbi_replicated_record *new_record) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    struct fbc_error error;
    int result = FBC_STALE;
    if (strlen(table) > 3 && is_system_table(table))
        return; /* direct changes of system tables are not captured */
    txn->changes++;
    if (!fbc_txn_open_journal(txn, &error)) {
        fbc_txn_refuse(txn, status, &error);
        return;
    }
    for (int is_stale = 0; result == FBC_STALE && is_stale < 2; is_stale++) {
        struct fbc_source source = source_of(txn);
        struct fbc_shape *shape =
            fbc_txn_shape(txn, table, is_stale, new_record ? new_record : old_record, &error);
        unsigned number = shape ? fbc_txn_table_number(txn, shape, &error) : 0;
        result = number ? fbc_row_write(&txn->journal, &source, shape, number, old_record,
                                        new_record, &error)
                        : FBC_FAILED;
    }
    if (result == FBC_STALE)
        fbc_error_set(&error, 0, "the old and the new row of table %s differ in their columns",
                      table);
    if (result != FBC_OK)
        fbc_txn_refuse(txn, status, &error);
    FBC_FAILPOINT("row.written");
}

void fbc_txn_execute(struct fbi_replicated_transaction *self, struct fbi_status *status,
                     unsigned charset, const char *sql) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    struct fbc_error error;
    size_t length = strlen(sql);
    char *body = NULL;
    txn->changes++;
    txn->has_ddl = 1;
    enum fbc_table_ddl kind = fbc_table_ddl_of(sql);
    txn->changes_tables |= kind != FBC_NO_TABLE_DDL;
    txn->changes_indexes |= kind == FBC_INDEX_DDL;
    /* What it makes of tables only a bridge in an engine can read, before and after. */
    if (fbc_host_need_bridge(txn->session->settings, &error) && fbc_txn_open_journal(txn, &error) &&
        (body = fbc_record_begin(&txn->journal, 2 + length, &error))) {
        fbc_put16(body, (uint16_t)charset);
        memcpy(body + 2, sql, length);
        fbc_record_end(&txn->journal, FBC_DDL, 0, 0, 2 + length);
        fbc_new_generation();
        return;
    }
    fbc_txn_refuse(txn, status, &error);
}

static void set_committing_ddl(struct fbc_transaction *txn, int state) {
    if (txn->is_committing_ddl != state)
        fbc_question_ddl(state - txn->is_committing_ddl);
    txn->is_committing_ddl = state;
}

/* Wait until what DDL before this transaction made of tables is read: another DDL would hide it.
 * The bridge reads it now, as nobody can drop the database meanwhile: a DROP DATABASE right behind
 * a commit that meets an attachment of ours, or a half open one, fails, or leaves the file there,
 * unusable. Then have it find out which indexes are keys, as this transaction may drop one. */
static void await_described(struct fbc_transaction *txn) {
    size_t length;
    if (txn->broken)
        return;
    fbc_await_described(txn->session->database, txn->changes_tables, DESCRIBED_MS);
    struct fbc_question *question =
        txn->changes_indexes ? fbc_question_ask(FBC_KNOW_INDEXES, txn->session->database->id,
                                                fbc_generation(), "", 0)
                             : NULL;
    if (!question)
        return;
    fbc_question_await(question, &length);
    fbc_question_drop(question);
}

void fbc_txn_prepare(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    struct fbc_error error = txn->error;
    /* The engine has taken none of its exclusive locks yet: our attachment is not in its way, and
     * sees the tables as they were before a DDL of this transaction. */
    fbc_txn_await_answers(txn);
    await_described(txn);
    set_committing_ddl(txn, txn->has_ddl);
    if (!txn->broken && fbc_txn_seal(txn, &error))
        return;
    fbc_txn_refuse(txn, status, &error);
    if (txn->is_lenient)
        fbc_txn_seal_gap(txn);
}

static void end_without_commit(struct fbc_transaction *txn, struct fbi_status *status) {
    struct fbc_error error;
    set_committing_ddl(txn, 0);
    fbc_txn_await_answers(txn); /* the next thing may be to drop the database */
    if (!txn->has_journal)
        return;
    int is_broken = fbc_txn_unseal(txn, &error); /* one of both has to do */
    if (!fbc_txn_drop_journal(txn) && !is_broken && status && !txn->is_lenient)
        fbc_report(status, error.text);
}

/* Have EVENT say where TXN lies. */
static void tell_place(struct fbc_event *event, const struct fbc_transaction *txn) {
    const struct fbc_place *place = &txn->place;
    const struct fbc_journal *own = &txn->journal;
    if (place->file) {
        fbc_shared_uuid(place, event->home);
        event->offset = place->offset;
        event->seal_end = place->seal_end;
        event->length = place->length;
        event->catalogue_offset = place->catalogue;
        return;
    }
    memcpy(event->home, own->identity.uuid, 16);
    event->offset = FBC_FILE_BLOCK;
    event->seal_end = own->sealed_at + FBC_SEAL;
    event->length = own->length;
    event->catalogue_offset = own->catalogue_at;
}

/* Let go of the journal of TXN, which others look after from now on. */
static void end_journal(struct fbc_transaction *txn) {
    fbc_slot_free(&txn->slot); /* first: while we have the journal nobody closes it */
    fbc_shared_let_go(&txn->place);
    fbc_journal_free(&txn->journal);
    fbc_txn_leave_names(txn);
    txn->has_journal = 0;
}

void fbc_txn_commit(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    struct fbc_session *session = txn->session;
    struct fbc_error error;
    int may_report = !txn->is_lenient;
    txn->is_lenient = 1; /* it can't be refused any more */
    txn->is_limited = 0;
    if (txn->has_ddl)
        fbc_new_generation();
    if (!txn->has_journal || !fbc_txn_is_sealed(txn)) /* the engine did not ask for a prepare, */
        fbc_txn_prepare(self, status);                /* or did not heed the answer */
    set_committing_ddl(txn, 0);
    txn->is_ended = 1;
    if (!txn->broken && !fbc_txn_root_was_released(txn, &error)) {
        fbc_txn_refuse(txn, status, &error);
        fbc_txn_seal_gap(txn);
    }
    /* Without a ticket that all draw from one file its place would mean nothing: count it then. */
    if (txn->is_gap && !fbc_txn_hold_tickets(txn, &error))
        txn->is_gap = 0;
    if (txn->broken && !txn->is_gap) {
        if (txn->changes)
            count_lost(txn);
        fbc_txn_drop_journal(txn);
        return;
    }
    if (fbc_txn_is_empty(txn)) {
        fbc_txn_drop_journal(txn);
        return;
    }
    FBC_FAILPOINT("commit.before_sync");
    int sync_error = fbc_txn_await_sync(txn);
    FBC_FAILPOINT("commit.synced");
    if (sync_error) { /* too late to refuse this one: refuse the next, until a new start works */
        fbc_error_set(&error, sync_error, "cannot sync %s.log.live of committed transaction %llu",
                      txn->journal.name, (unsigned long long)txn->number);
        if (may_report)
            fbc_report(status, error.text);
        fbc_host_tell(error.text);
        fbc_host_suspend_capture(&error);
        if (txn->journal.fd < 0) { /* in memory alone, and nowhere else to write it to */
            txn->error = error;
            count_lost(txn);
            fbc_txn_drop_journal(txn);
            return;
        }
    }
    if (txn->is_gap)
        fbc_session_count_failure(session, FBC_GAPS);
    if (txn->folder >= 0 && fbc_txn_leave_ownerless(txn, !sync_error))
        return;
    struct fbc_event event = {
        .kind = FBC_COMMITTED,
        .database = session->database->id,
        .transaction = txn->number,
        .ticket = fbc_tickets_begin_commit(session->database, txn->changes_tables),
        .commit_us = fbc_now_us(),
        .events = txn->journal.at.events,
        .has_ddl = (uint32_t)txn->has_ddl,
        .is_unresolved = (uint32_t)(txn->is_unresolved && !txn->is_gap),
        .is_unsynced = sync_error != 0,
        .is_gap = (uint32_t)txn->is_gap,
        .fd = -1,
    };
    FBC_FAILPOINT("commit.ticket_drawn");
    memcpy(event.uuid, txn->journal.identity.uuid, 16);
    tell_place(&event, txn);
    if (txn->is_gap || sync_error)
        snprintf(event.reason, sizeof event.reason, "%.255s",
                 txn->is_gap ? txn->error.text : error.text);
    /* The entry is for other processes; the hand-over below does not depend on it. */
    int failed = fbc_commits_write(&event);
    event.is_unlisted = failed != 0;
    FBC_FAILPOINT("commit.marked");
    fbc_journal_leave(&txn->journal);
    session->last_handed_over = fbc_events_hand_over(&event);
    FBC_FAILPOINT("commit.handed_over");
    fbc_tickets_end_commit();
    if (fbc_host_is_joined())
        fbc_call_confirmer();
    fbc_txn_release_tickets(txn);
    if (failed) { /* only now: a start of the bridge may wait for the tickets */
        fbc_error_set(&error, failed, "the entry of a commit can't be written");
        fbc_host_tell(error.text);
        fbc_host_suspend_capture(&error);
    }
    FBC_FAILPOINT("commit.end");
    if (!event.is_gap) {
        fbc_count(fbc_txn_tally(txn), FBC_CAPTURED, 1);
        fbc_count(fbc_txn_tally(txn), FBC_CHANGES, event.events);
        fbc_count(fbc_txn_tally(txn), FBC_BYTES, event.length);
    }
    fbc_txn_commit_sequences(txn);
    end_journal(txn);
}

/* The engine lets TXN go without a word on its end: it is in limbo, between the phases of a
 * two-phase commit, or publication was switched off. Leave all that is known of it on disk for the
 * bridge, which can tell the two apart. What is lost counts now: nobody asks us once it is
 * committed.
 */
static void abandon(struct fbc_transaction *txn) {
    struct fbc_error error = txn->error;
    txn->is_limited = 0; /* it is in limbo, or has committed */
    fbc_txn_await_answers(txn);
    txn->is_lenient = 1;
    txn->needs_own = 1; /* a shared journal would wait for it, perhaps for ever */
    if (!txn->broken && txn->place.file && !fbc_txn_unseal(txn, &error))
        fbc_txn_refuse(txn, NULL, &error);
    if (txn->broken || !fbc_txn_seal(txn, &error)) {
        fbc_txn_refuse(txn, NULL, &error);
        fbc_txn_seal_gap(txn);
    }
    if (fbc_txn_is_empty(txn) || txn->folder >= 0) {
        if (txn->broken && txn->changes)
            count_lost(txn);
        fbc_txn_drop_journal(txn);
        return;
    }
    if (txn->is_gap)
        fbc_session_count_failure(txn->session, FBC_GAPS);
    int sync_error = fbc_sync_wait(&txn->sync);
    if (sync_error) {
        fbc_error_set(&error, sync_error, "cannot sync %s.log.live of transaction %llu in limbo",
                      txn->journal.name, (unsigned long long)txn->number);
        fbc_host_tell(error.text);
        fbc_host_suspend_capture(&error);
    }
    struct fbc_event event = {.kind = FBC_ABANDONED,
                              .database = txn->session->database->id,
                              .transaction = txn->number,
                              .is_unsynced = sync_error != 0,
                              .fd = txn->journal.fd};
    memcpy(event.uuid, txn->journal.identity.uuid, 16);
    txn->journal.fd = -1;
    /* It has no ticket, but who builds on it once it is resolved needs a higher floor. */
    fbc_tickets_begin_commit(txn->session->database, 0);
    fbc_tickets_end_commit();
    txn->session->last_handed_over = fbc_events_hand_over(&event);
    fbc_txn_release_tickets(txn);
    end_journal(txn);
}

void fbc_txn_rollback(struct fbi_replicated_transaction *self, struct fbi_status *status) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    txn->is_ended = 1;
    fbc_count(fbc_txn_tally(txn), FBC_ROLLED_BACK, txn->changes > 0);
    fbc_count(fbc_txn_tally(txn), FBC_OPENED_IN_VAIN, (uint64_t)txn->has_journal);
    end_without_commit(txn, status);
}

static void free_transaction(struct fbc_transaction *txn) {
    struct fbi_replicated_session *session = &txn->session->base;
    txn->status->vt->dispose(txn->status);
    fbc_txn_free_tables(txn);
    free(txn->savepoints);
    free(txn);
    session->vt->release(session);
}

void fbc_txn_dispose(struct fbi_replicated_transaction *self) {
    struct fbc_transaction *txn = fbc_txn_of(self);
    int is_lost = txn->is_lenient && txn->broken && txn->changes;
    if ((txn->has_journal || is_lost) && !txn->is_ended)
        abandon(txn);
    end_without_commit(txn, NULL);
    fbc_journal_free(&txn->journal);
    free_transaction(txn);
}

int fbc_session_is_lenient(const struct fbc_session *session) {
    return !session->propagates_errors || fbc_host_mode_is_gap(session->settings);
}

struct fbc_transaction *fbc_txn_new(struct fbc_session *session, struct fbi_transaction *engine,
                                    int64_t number, struct fbc_error *error) {
    if (session->refusal && (!session->database || session->propagates_errors)) {
        fbc_error_set(error, 0, "%s", session->refusal);
        return NULL;
    }
    struct fbc_transaction *txn = calloc(1, sizeof *txn);
    if (!txn || !(txn->status = fbc_host_new_status())) {
        fbc_error_set(error, 0, "no memory for a transaction");
        free(txn);
        return NULL;
    }
    txn->base.vt = &fbc_transaction_vt;
    txn->session = session;
    txn->engine = engine;
    txn->number = (uint64_t)number;
    txn->journal.fd = -1;
    txn->folder = txn->names = -1;
    session->base.vt->add_ref(&session->base);
    if (!session->database || session->unidentified.text[0])
        fbc_session_identify(txn, error);
    if (!session->database) {
        free_transaction(txn);
        return NULL;
    }
    txn->is_rootless = session->is_rootless;
    txn->is_lenient = fbc_session_is_lenient(session);
    txn->is_limited = 1;
    int is_ready = fbc_host_ready(session->settings, error);
    if (is_ready && !session->unidentified.text[0] && !session->refusal)
        return txn;
    if (session->refusal)
        fbc_error_set(error, 0, "%s", session->refusal);
    else if (is_ready)
        *error = session->unidentified;
    /* Of an engine that can't be served not even a gap may be left in a file. */
    if (txn->is_lenient && !(session->refusal && session->propagates_errors)) {
        txn->broken = 1;
        txn->error = *error;
        return txn;
    }
    free_transaction(txn);
    return NULL;
}
