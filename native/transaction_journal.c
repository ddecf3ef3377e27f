/* The journal of a transaction: begun at its first change, sealed and synced in prepare, taken back
 * or removed where it is not committed. */
#define _GNU_SOURCE
#include "transaction.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "commits.h"
#include "failpoint.h"
#include "folder.h"
#include "host.h"
#include "shared_page.h"

void fbc_txn_account_less(struct fbc_transaction *txn, uint64_t left) {
    struct fbc_journal *journal = &txn->journal;
    if (txn->folder < 0 && journal->reserved > left) {
        fbc_disk_grow(-(int64_t)(journal->reserved - left));
        journal->reserved = left;
    }
}

void fbc_txn_shrink(struct fbc_transaction *txn) {
    if (txn->has_journal && !txn->journal.sealed_at && txn->journal.reserved > FBC_OWN_BYTES &&
        ftruncate(txn->journal.fd, FBC_OWN_BYTES) == 0)
        fbc_txn_account_less(txn, FBC_OWN_BYTES);
}

int fbc_txn_hold_tickets(struct fbc_transaction *txn, struct fbc_error *error) {
    txn->has_tickets = txn->has_tickets || fbc_tickets_hold(error);
    return txn->has_tickets;
}

void fbc_txn_release_tickets(struct fbc_transaction *txn) {
    if (txn->has_tickets)
        fbc_tickets_release();
    txn->has_tickets = 0;
}

int fbc_txn_is_sealed(const struct fbc_transaction *txn) {
    return txn->place.file || txn->journal.sealed_at;
}

/* Wait for the sync that a prepare began. */
static int await_sync(struct fbc_transaction *txn, struct fbc_error *error) {
    if (txn->place.file) {
        int failed = fbc_shared_await(&txn->place);
        if (failed)
            fbc_error_set(error, failed, "cannot sync the journal of transaction %llu",
                          (unsigned long long)txn->number);
        return failed ? FBC_FAILED : FBC_OK;
    }
    int reason = fbc_sync_wait(&txn->sync);
    return reason ? fbc_journal_sync_failed(&txn->journal, reason, error) : FBC_OK;
}

int fbc_txn_needs_sync(const struct fbc_transaction *txn) {
    return fbc_folder.is_synced || txn->folder >= 0;
}

int fbc_txn_unseal(struct fbc_transaction *txn, struct fbc_error *error) {
    struct fbc_error ignored;
    if (txn->place.file) {
        int is_void = fbc_shared_void(txn->session->database, &txn->place, error);
        fbc_txn_release_tickets(txn);
        return is_void;
    }
    if (!txn->journal.sealed_at)
        return FBC_OK;
    int is_synced = await_sync(txn, error);
    FBC_FAILPOINT("unseal.before");
    int is_broken = fbc_journal_break_seal(&txn->journal, fbc_txn_needs_sync(txn),
                                           is_synced ? error : &ignored);
    FBC_FAILPOINT("unseal.after");
    fbc_txn_release_tickets(txn);
    return is_synced && is_broken;
}

void fbc_txn_leave_names(struct fbc_transaction *txn) {
    if (txn->names >= 0)
        close(txn->names);
    txn->names = -1;
}

static struct fbc_transaction *txn_with(struct fbc_journal *journal) {
    return (struct fbc_transaction *)((char *)journal - offsetof(struct fbc_transaction, journal));
}

/* Account for a journal that is about to be written up to END. */
static int reserve(struct fbc_journal *journal, uint64_t end, struct fbc_error *error) {
    struct fbc_transaction *txn = txn_with(journal);
    fbc_disk_grow((int64_t)(end - journal->reserved));
    journal->reserved = end;
    return !txn->is_limited || fbc_folder_has_room(end, error);
}

/* Say in JOURNAL whose it is: the bridge may have been started anew since it was begun. */
static void sign(struct fbc_journal *journal) {
    memcpy(journal->identity.owner, fbc_folder.owner, 16);
}

/* It does not stay in memory: give it a file of its own, */
static int take_file(struct fbc_journal *journal, struct fbc_error *error) {
    struct fbc_transaction *txn = txn_with(journal);
    fbc_txn_leave_names(txn);
    journal->fd = fbc_host_take_journal(journal->name, &txn->names, error);
    if (journal->fd < 0)
        return FBC_FAILED;
    sign(journal);
    journal->reserved = FBC_OWN_BYTES;
    return FBC_OK;
}

/* which tells of the transaction from then on. */
static void is_in_file(struct fbc_journal *journal) {
    fbc_slot_free(&txn_with(journal)->slot);
}

int fbc_txn_begin_journal(struct fbc_transaction *txn, int fd, const char *name,
                          const unsigned char *uuid, struct fbc_error *error) {
    struct fbc_session *session = txn->session;
    struct fbc_journal_identity identity = {.transaction = txn->number,
                                            .started_us = fbc_now_us(),
                                            .database_inode = session->database_inode,
                                            .database = session->database->path};
    memcpy(identity.uuid, uuid, 16);
    memcpy(identity.database_guid, session->database->guid, 16);
    if (txn->folder < 0) {
        memcpy(identity.owner, fbc_folder.owner, 16);
        memcpy(identity.boot, fbc_folder.boot, 16);
    }
    fbc_journal_open(&txn->journal, fd, name, &identity);
    txn->has_journal = 1;
    txn->journal.reserved = fd < 0 ? 0 : FBC_OWN_BYTES;
    txn->journal.reserve = txn->folder < 0 ? reserve : NULL;
    txn->journal.take_file = take_file;
    txn->journal.is_in_file = is_in_file;
    /* At once in the file: if the process is killed between the phases of a two-phase commit,
     * this, or a slot, is all that tells of the transaction. */
    return fbc_journal_begin(&txn->journal, session->database->path,
                             strlen(session->database->path), session->user, strlen(session->user),
                             error) &&
           (fd < 0 || fbc_journal_flush(&txn->journal, error));
}

/* Begin in memory, if a slot can be had. */
static int begin_in_memory(struct fbc_transaction *txn) {
    char name[40];
    unsigned char uuid[16];
    struct fbc_error ignored;
    if (fbc_journal_name(name, uuid) != 0 ||
        !fbc_slot_take(&txn->slot, txn->session->database, txn->session->database_inode,
                       txn->number, fbc_now_us(), &ignored))
        return 0;
    if (fbc_txn_begin_journal(txn, -1, name, uuid, &ignored))
        return 1;
    txn->has_journal = 0;
    fbc_slot_free(&txn->slot);
    fbc_journal_free(&txn->journal);
    return 0;
}

int fbc_txn_new_file(struct fbc_transaction *txn, char name[40], unsigned char uuid[16],
                     struct fbc_error *error) {
    int failed = fbc_journal_name(name, uuid);
    if (failed) {
        fbc_error_set(error, failed, "no random bytes for a journal's name");
        return -1;
    }
    fbc_txn_leave_names(txn);
    return fbc_has_folder()
               ? fbc_host_take_journal(name, &txn->names, error)
               : fbc_host_make_ownerless(txn->session->settings, name, &txn->folder, error);
}

void fbc_txn_start_sync(struct fbc_transaction *txn) {
    if (fbc_txn_needs_sync(txn)) /* of one without an owner the folder is synced in the end */
        fbc_sync_start(&txn->sync, txn->journal.fd, txn->names);
}

int fbc_txn_open_journal(struct fbc_transaction *txn, struct fbc_error *error) {
    char name[40];
    unsigned char uuid[16];
    if (txn->broken) {
        if (txn->has_journal && (fbc_txn_unseal(txn, error) || txn->journal.is_untrusted))
            txn->is_gap = 0;
        *error = txn->error;
        return FBC_FAILED;
    }
    if (txn->has_journal)
        return fbc_txn_unseal(txn, error);
    if (fbc_folder.transactions != 1 && !txn->needs_own && begin_in_memory(txn)) {
        fbc_count(fbc_txn_tally(txn), FBC_OPENED, 1);
        return FBC_OK;
    }
    int fd = fbc_txn_new_file(txn, name, uuid, error);
    if (fd < 0)
        return FBC_FAILED;
    fbc_count(fbc_txn_tally(txn), FBC_OPENED, 1);
    return fbc_txn_begin_journal(txn, fd, name, uuid, error);
}

int fbc_txn_is_empty(const struct fbc_transaction *txn) {
    return !txn->has_journal || txn->journal.at.records <= 1; /* BEGIN alone */
}

static int may_share(const struct fbc_transaction *txn) {
    return txn->journal.fd < 0 && !txn->needs_own && !txn->has_ddl && !txn->is_unresolved &&
           txn->journal.at.used <= FBC_SHARED_MOST;
}

/* Append TXN to a shared journal; the sync of it is started. FORMER: as fbc_shared_append. */
static int share(struct fbc_transaction *txn, const struct fbc_appendix *catalogue,
                 const struct fbc_place *former, struct fbc_error *error) {
    unsigned char head[FBC_HEAD];
    char seal[FBC_SEAL];
    struct fbc_unit unit;
    sign(&txn->journal);
    fbc_journal_pack(&txn->journal, head, seal, fbc_now_us(), fbc_tickets_next(), catalogue, &unit);
    return fbc_shared_append(txn->session->database, txn->session->database_inode, &unit, former,
                             &txn->place, error);
}

/* Say that a transaction which ends otherwise may be taken for committed. */
static void tell_kept(const struct fbc_transaction *txn, const struct fbc_error *error) {
    struct fbc_error text;
    fbc_error_set(&text, 0,
                  "the journal of transaction %llu, which is not to be published, could not be "
                  "removed for good, and a power cut may bring it back: %.300s",
                  (unsigned long long)txn->number, error->text);
    fbc_host_suspend_capture(&text);
    fbc_host_tell(text.text);
}

/* Make PLACE, where TXN lies and is not to be published, void; returns whether that is sure. */
static int make_void(struct fbc_transaction *txn, struct fbc_place *place) {
    struct fbc_error error;
    if (!place->file || fbc_shared_void(txn->session->database, place, &error))
        return 1;
    tell_kept(txn, &error);
    place->file = NULL; /* which stays locked: nobody closes it while we live */
    return 0;
}

/* Wait until TXN's own journal is on disk; returns an errno. */
static int await_own(struct fbc_transaction *txn) {
    int failed = fbc_sync_wait(&txn->sync);
    return failed && txn->sync.is_written ? fbc_folder_name_again(txn->journal.name) : failed;
}

int fbc_txn_await_sync(struct fbc_transaction *txn) {
    struct fbc_error ignored;
    struct fbc_place first = txn->place;
    if (!first.file)
        return await_own(txn);
    int failed = fbc_shared_await(&first);
    if (!failed)
        return 0;
    struct fbc_appendix catalogue = fbc_txn_catalogue(txn);
    txn->place.file = NULL;
    if (share(txn, &catalogue, &first, &ignored) && !(failed = fbc_shared_await(&txn->place)))
        fbc_shared_let_go(&first); /* the void for it is on disk, too */
    else {                         /* a journal of its own can be copied once the disk works */
        struct fbc_place second = txn->place;
        txn->place.file = NULL;
        if (fbc_journal_seal(&txn->journal, fbc_now_us(), fbc_tickets_next(), &catalogue,
                             &ignored)) {
            fbc_txn_start_sync(txn);
            failed = await_own(txn);
        }
        make_void(txn, &first);
        make_void(txn, &second);
    }
    free(catalogue.block);
    return failed;
}

int fbc_txn_seal(struct fbc_transaction *txn, struct fbc_error *error) {
    if (!fbc_txn_savepoints_add_up(txn, error) || !fbc_txn_write_sequences(txn, error))
        return FBC_FAILED;
    if (fbc_txn_is_empty(txn))
        return FBC_OK;
    if (fbc_txn_is_sealed(txn)) /* a second prepare with nothing in between */
        return await_sync(txn, error);
    struct fbc_appendix catalogue = fbc_txn_catalogue(txn);
    FBC_FAILPOINT("prepare.before_seal");
    int shares = may_share(txn); /* then it is looked there whether the folder is in place */
    uint64_t floor = fbc_tickets_next(); /* of the folder that is looked at next */
    int done =
        fbc_host_resume_capture(txn->session->settings, error) &&
        (shares || fbc_host_folder_in_place(error)) &&
        (txn->journal.fd < 0 || fbc_folder_holds(txn->journal.fd, txn->journal.name, error)) &&
        (!txn->is_limited || fbc_folder_has_room(txn->journal.reserved, error)) &&
        fbc_txn_hold_tickets(txn, error) && fbc_commits_reserve(error) &&
        (shares ? share(txn, &catalogue, NULL, error)
                : fbc_journal_seal(&txn->journal, fbc_now_us(), floor, &catalogue, error));
    free(catalogue.block);
    if (!done) {
        fbc_txn_release_tickets(txn);
        return FBC_FAILED;
    }
    FBC_FAILPOINT("prepare.sealed");
    if (!txn->place.file)
        fbc_txn_start_sync(txn);
    FBC_FAILPOINT("prepare.sync_started");
    return FBC_OK;
}

static int drop_file(struct fbc_transaction *txn) {
    struct fbc_error error = {"a sync of it had failed before"};
    int is_void = await_sync(txn, &error); /* it has the descriptor */
    FBC_FAILPOINT("discard.before");
    is_void = fbc_journal_void(&txn->journal, fbc_txn_needs_sync(txn), &error) && is_void &&
              !txn->journal.is_untrusted;
    FBC_FAILPOINT("discard.voided");
    fbc_txn_account_less(txn, 0);
    int is_gone = 1, must_go = !is_void && fbc_txn_needs_sync(txn);
    if (txn->folder >= 0) {
        char live[64];
        snprintf(live, sizeof live, "%s.log.live", txn->journal.name);
        unlinkat(txn->folder, live, 0);
        is_gone = !must_go || fsync(txn->folder) == 0;
        close(txn->folder);
        txn->folder = -1;
    } else
        is_gone = fbc_folder_discard_journal(txn->journal.name, must_go);
    FBC_FAILPOINT("discard.after");
    if (!is_gone)
        tell_kept(txn, &error);
    return is_gone;
}

int fbc_txn_drop_journal(struct fbc_transaction *txn) {
    fbc_txn_release_tickets(txn);
    if (!txn->has_journal)
        return FBC_OK;
    int is_gone = txn->journal.fd < 0 ? make_void(txn, &txn->place) : drop_file(txn);
    fbc_slot_free(&txn->slot); /* also where its file was taken and could not be written */
    fbc_journal_free(&txn->journal);
    fbc_txn_leave_names(txn);
    txn->has_journal = 0;
    return is_gone;
}
