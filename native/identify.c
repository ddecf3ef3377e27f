/* What the engine's information calls tell: the database, its user, the engine's version, and how
 * many rows an attachment has changed. They wait for nothing, so they may be made inside its
 * callbacks; statements may not. */
#define _GNU_SOURCE
#include "transaction.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cancels.h"
#include "engine_version.h"

static void parse_guid(const char *text, unsigned char guid[16]) {
    /* 32 hexadecimal digits in groups, in braces */
    unsigned count = 0;
    memset(guid, 0, 16);
    for (; *text && count < 32; text++) {
        unsigned digit;
        if (*text >= '0' && *text <= '9')
            digit = (unsigned)(*text - '0');
        else if ((*text | 32) >= 'a' && (*text | 32) <= 'f')
            digit = (unsigned)((*text | 32) - 'a' + 10);
        else
            continue;
        guid[count / 2] = (unsigned char)(guid[count / 2] << 4 | digit);
        count++;
    }
}

/* One item of an information buffer; null if it is not there. */
static const unsigned char *info_item(const unsigned char *buffer, size_t size, unsigned char item,
                                      size_t *length) {
    const unsigned char *at = buffer;
    while (at + 3 <= buffer + size && *at != FBI_INFO_END) {
        *length = (size_t)(at[1] | at[2] << 8);
        if (at + 3 + *length > buffer + size)
            break;
        if (*at == item)
            return at + 3;
        at += 3 + *length;
    }
    return NULL;
}

/* Ask the engine for ITEMS; what it does not tell is missing in BUFFER. */
static void ask(struct fbc_transaction *txn, const unsigned char *items, unsigned count,
                unsigned char *buffer, size_t size) {
    struct fbi_attachment *attachment = txn->session->attachment;
    int is_cancelled = -1;
    do {
        is_cancelled++;
        memset(buffer, FBI_INFO_END, size);
        txn->status->vt->init(txn->status);
        attachment->vt->get_info(attachment, txn->status, count, items, (unsigned)size, buffer);
    } while (fbc_cancel_taken(txn->status));
    if (is_cancelled)
        fbc_cancel_return(attachment, txn->status);
}

void fbc_session_identify(struct fbc_transaction *txn, struct fbc_error *error) {
    enum { LONGEST_PATH = 254 }; /* the engine cuts longer ones to 255 bytes */
    static const unsigned char place[] = {FBI_INFO_DB_ID, FBI_INFO_DB_GUID,
                                          FBI_INFO_FIREBIRD_VERSION};
    static const unsigned char user[] = {FBI_INFO_USERNAME};
    struct fbc_session *session = txn->session;
    unsigned char buffer[1024], guid[16] = {0};
    char path[LONGEST_PATH + 1], text[64];
    struct stat file;
    size_t length = 0;
    session->unidentified.text[0] = 0;
    ask(txn, place, sizeof place, buffer, sizeof buffer);
    /* the item holds: 2, length of the path, path, length of the host's name, name */
    const unsigned char *item = info_item(buffer, sizeof buffer, FBI_INFO_DB_ID, &length);
    size_t known = item && length >= 2 ? item[1] : 0;
    if (!known || known > LONGEST_PATH || known + 2 > length) {
        fbc_error_set(&session->unidentified, 0,
                      known ? "the database's path is longer than 254 bytes, and the engine "
                              "does not tell more of it"
                            : "the engine does not tell the database's path");
        known = known > LONGEST_PATH ? LONGEST_PATH : 0;
    }
    memcpy(path, known ? (const char *)item + 2 : "", known);
    path[known] = 0;
    if (stat(path, &file) == 0)
        session->database_inode = (uint64_t)file.st_ino;
    item = info_item(buffer, sizeof buffer, FBI_INFO_DB_GUID, &length);
    if (item && length < sizeof text) {
        memcpy(text, item, length);
        text[length] = 0;
        parse_guid(text, guid);
    }
    /* the item holds: 1, length of the text, text */
    item = info_item(buffer, sizeof buffer, FBI_INFO_FIREBIRD_VERSION, &length);
    if (item && length > 2) {
        struct fbc_engine_version version = fbc_engine_version_of(item + 2, length - 2);
        session->is_rootless = !fbc_engine_announces_root(&version);
        session->refusal = fbc_engine_refusal(&version);
    }
    ask(txn, user, sizeof user, buffer, sizeof buffer);
    item = info_item(buffer, sizeof buffer, FBI_INFO_USERNAME, &length);
    if (item && length < sizeof session->user) {
        memcpy(session->user, item, length);
        session->user[length] = 0;
    }
    struct fbc_database *found = fbc_database_enter(path, guid, error);
    if (!found) {
        session->unidentified = *error;
        return;
    }
    if (session->database)
        fbc_database_leave(session->database);
    session->database = found;
    session->propagates_errors = fbc_host_engine_propagates_errors(found);
}

uint64_t fbc_session_new_changes(struct fbc_transaction *txn) {
    enum { SIZE = 32 * 1024, ENTRY = 6 }; /* u16 relation, u32 count */
    static const unsigned char counts[] = {FBI_INFO_INSERT_COUNT, FBI_INFO_UPDATE_COUNT,
                                           FBI_INFO_DELETE_COUNT};
    struct fbc_session *session = txn->session;
    unsigned char *buffer = malloc(SIZE);
    uint64_t total = 0;
    if (!buffer)
        return UINT64_MAX;
    ask(txn, counts, sizeof counts, buffer, SIZE);
    for (unsigned i = 0; i < sizeof counts; i++) {
        size_t length = 0;
        const unsigned char *item = info_item(buffer, SIZE, counts[i], &length);
        if (!item) {
            free(buffer);
            return UINT64_MAX;
        }
        for (size_t at = 0; at + ENTRY <= length; at += ENTRY) {
            uint32_t count;
            memcpy(&count, item + at + 2, sizeof count);
            total += count;
        }
    }
    free(buffer);
    uint64_t before = session->counted_changes;
    session->counted_changes = total;
    return total >= before ? total - before : UINT64_MAX;
}
