/* The content of BLOBs and arrays of a row, as journal records. */
#include "blobs.h"

#include "cancels.h"

enum { BLOB_CHUNK = 60 * 1024 };
enum { BPB_VERSION1 = 1, BPB_TARGET_TYPE = 2 }; /* consts_pub.h */

struct content {
    const struct fbc_source *source;
    struct fbi_quad id;
    struct fbi_blob *blob; /* null: nothing more is to be read */
    uint64_t taken;        /* bytes */
    uint64_t again;        /* of these, still to be passed over, as it was opened again */
    int is_unreadable;
    int is_cancelled; /* the statement is, and has to hear of it */
};

static int was_cancelled(struct content *content) {
    int was = fbc_cancel_taken(content->source->status);
    content->is_cancelled |= was;
    return was;
}

static int failed(const struct content *content) {
    const struct fbi_status *status = content->source->status;
    return (status->vt->get_state(status) & FBI_STATE_ERRORS) != 0;
}

static void open_content(struct content *content) {
    /* as stored: without this the engine turns text into the attachment's character set */
    static const unsigned char bpb[] = {BPB_VERSION1, BPB_TARGET_TYPE, 1, 0};
    const struct fbc_source *source = content->source;
    do {
        struct fbi_quad id = content->id;
        source->status->vt->init(source->status);
        content->blob = source->attachment->vt->open_blob(
            source->attachment, source->status, source->transaction, &id, sizeof bpb, bpb);
    } while (was_cancelled(content));
    if (failed(content))
        content->blob = NULL;
    content->is_unreadable = !content->blob;
    content->again = content->taken;
}

static void close_content(struct content *content) {
    struct fbi_status *status = content->source->status;
    struct fbi_blob *blob = content->blob;
    if (!blob)
        return;
    do {
        status->vt->init(status);
        if (blob->vt->version >= FBI_BLOB_HAS_CLOSE)
            blob->vt->close(blob, status);
        else
            blob->vt->deprecated_close(blob, status);
    } while (was_cancelled(content));
    if (failed(content))
        blob->vt->release(blob);
    content->blob = NULL;
}

/* Read up to ROOM bytes that follow; returns how many, which may be none before the end. */
static size_t read_content(struct content *content, char *to, size_t room) {
    struct fbi_status *status = content->source->status;
    struct fbi_blob *blob = content->blob;
    unsigned got = 0;
    if (content->again && content->again < room)
        room = (size_t)content->again;
    status->vt->init(status);
    int result = blob->vt->get_segment(blob, status, (unsigned)room, to, &got);
    if (was_cancelled(content)) {
        close_content(content); /* it may have got on */
        open_content(content);
        return 0;
    }
    content->is_unreadable = failed(content) || result < 0;
    if (content->is_unreadable || result == FBI_RESULT_NO_DATA) {
        close_content(content);
        return 0;
    }
    if (content->again) {
        content->again -= got;
        return 0;
    }
    content->taken += got;
    return got;
}

static int write_chunks(struct content *content, struct fbc_journal *journal, uint64_t number,
                        struct fbc_error *error) {
    do {
        char *body = fbc_record_begin(journal, 8 + BLOB_CHUNK, error);
        if (!body)
            return FBC_FAILED;
        size_t used = 0;
        while (content->blob && used < BLOB_CHUNK)
            used += read_content(content, body + 8 + used, BLOB_CHUNK - used);
        fbc_put64(body, number);
        fbc_record_end(journal, FBC_BLOB,
                       (content->blob ? 0 : FBC_BLOB_LAST) |
                           (content->is_unreadable ? FBC_BLOB_UNREADABLE : 0),
                       0, 8 + used);
    } while (content->blob);
    return FBC_OK;
}

int fbc_blob_write(struct fbc_journal *journal, const struct fbc_source *source,
                   const struct fbi_quad *id, uint64_t *number, struct fbc_error *error) {
    struct content content = {.source = source, .id = *id};
    *number = ++journal->at.blobs;
    if (id->high || id->low)
        open_content(&content);
    int result = write_chunks(&content, journal, *number, error);
    close_content(&content);
    if (content.is_cancelled)
        fbc_cancel_return(source->attachment, source->status);
    return result;
}
