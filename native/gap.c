/* A gap in the place of changes that could not be recorded, where the user wants such a transaction
 * let through. */
#define _GNU_SOURCE
#include "transaction.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "commits.h"
#include "folder.h"
#include "gap_counts.h"
#include "host.h"
#include "shared_page.h"

/* Make TEXT valid UTF-8: it may quote a path in another character set, or be cut off. */
static void make_utf8(char *text) {
    for (unsigned char *at = (unsigned char *)text; *at;) {
        unsigned length = *at < 0x80                  ? 1
                          : *at >= 0xc2 && *at < 0xe0 ? 2
                          : *at >= 0xe0 && *at < 0xf0 ? 3
                          : *at >= 0xf0 && *at < 0xf5 ? 4
                                                      : 0;
        unsigned good = length > 0;
        while (good && good < length && (at[good] & 0xc0) == 0x80)
            good++;
        /* overlong forms, surrogates, and what is beyond the last character */
        int is_wrong = (*at == 0xe0 && at[1] < 0xa0) || (*at == 0xed && at[1] > 0x9f) ||
                       (*at == 0xf0 && at[1] < 0x90) || (*at == 0xf4 && at[1] > 0x8f);
        if (!length || good < length || is_wrong) {
            *at++ = '?';
            continue;
        }
        at += length;
    }
}

/* Fill the file FD, beginning anew, with BEGIN, GAP and seal. */
static int write_gap(struct fbc_transaction *txn, int fd, const char *name,
                     const unsigned char *uuid, const char *reason) {
    struct fbc_error ignored;
    size_t length = strlen(reason);
    uint64_t floor = txn->folder < 0 ? fbc_tickets_next() : 0;
    struct stat file;
    if (fstat(fd, &file) == 0 && file.st_size > FBC_OWN_BYTES && ftruncate(fd, FBC_OWN_BYTES) != 0)
        fbc_host_tell("a journal that holds a gap can't be cut"); /* long, but right */
    char *body = fbc_txn_begin_journal(txn, fd, name, uuid, &ignored)
                     ? fbc_record_begin(&txn->journal, 2 + length, &ignored)
                     : NULL;
    if (!body)
        return FBC_FAILED;
    fbc_put16(body, (uint16_t)length);
    memcpy(body + 2, reason, length);
    fbc_record_end(&txn->journal, FBC_GAP, 0, 0, 2 + length);
    return fbc_journal_seal(&txn->journal, fbc_now_us(), floor, NULL, &ignored);
}

/* Use the journal that TXN has: its beginning is on disk, so that it can be written again even
 * where nothing else fits. */
static int rewrite_as_gap(struct fbc_transaction *txn, const char *reason) {
    char name[40];
    unsigned char uuid[16];
    struct fbc_error ignored;
    if (!fbc_txn_unseal(txn, &ignored) || txn->journal.is_untrusted)
        return FBC_FAILED;
    int fd = txn->journal.fd;
    fbc_txn_account_less(txn, FBC_OWN_BYTES); /* it is cut */
    memcpy(name, txn->journal.name, sizeof name);
    memcpy(uuid, txn->journal.identity.uuid, sizeof uuid);
    txn->journal.fd = -1;
    fbc_journal_free(&txn->journal);
    return write_gap(txn, fd, name, uuid, reason);
}

static int gap_in_new_file(struct fbc_transaction *txn, const char *reason) {
    char name[40];
    unsigned char uuid[16];
    struct fbc_error ignored;
    int fd = fbc_txn_new_file(txn, name, uuid, &ignored);
    return fd >= 0 && write_gap(txn, fd, name, uuid, reason);
}

void fbc_txn_seal_gap(struct fbc_transaction *txn) {
    char reason[640], told[640];
    struct fbc_error ignored;
    if (txn->is_gap)
        return; /* a second prepare with nothing in between */
    if (!txn->changes) {
        fbc_txn_drop_journal(txn);
        return;
    }
    snprintf(reason, sizeof reason,
             "transaction %llu was committed, but its changes could not be recorded: %s",
             (unsigned long long)txn->number, txn->error.text);
    make_utf8(reason);
    /* Without the number: the same for all, so that it leaves room for what else is told. */
    snprintf(told, sizeof told,
             "transactions are committed whose changes could not be recorded: %s", txn->error.text);
    fbc_host_tell(told);
    if (txn->session->unidentified.text[0] || txn->session->refusal ||
        (fbc_has_folder() && !fbc_host_folder_in_place(&ignored))) {
        fbc_txn_drop_journal(txn); /* nobody could ask what became of it, or find it */
        return;
    }
    if (txn->has_journal && fbc_has_folder() && txn->journal.fd < 0)
        fbc_txn_drop_journal(txn); /* a gap has a journal of its own */
    if (txn->has_journal && fbc_has_folder() &&
        !fbc_folder_holds(txn->journal.fd, txn->journal.name, &ignored))
        fbc_txn_drop_journal(txn);
    if (txn->has_journal) {
        txn->is_gap = rewrite_as_gap(txn, reason);
        if (!txn->is_gap)
            fbc_txn_drop_journal(txn);
    }
    if (!txn->has_journal) {
        txn->is_gap = gap_in_new_file(txn, reason);
        if (!txn->is_gap)
            fbc_txn_drop_journal(txn);
    }
    if (txn->is_gap)
        fbc_txn_start_sync(txn);
    if (txn->is_gap && txn->folder < 0)
        fbc_commits_reserve(&ignored); /* it may have to go without an entry */
}

int fbc_txn_leave_ownerless(struct fbc_transaction *txn, int is_synced) {
    int is_left = !fbc_host_is_folder(txn->folder);
    is_synced = fsync(txn->folder) == 0 && is_synced;
    close(txn->folder);
    txn->folder = -1;
    if (is_left) {
        fbc_txn_release_tickets(txn);
        if (!is_synced) /* it may be gone after a power cut */
            fbc_gaps_count(txn->session->database, txn->error.text);
        fbc_journal_free(&txn->journal);
        txn->has_journal = 0;
    }
    return is_left;
}
