/* Slots of open transactions; see slots.h and journal/folder/slots.py. */
#define _GNU_SOURCE
#include "slots.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "folder.h"
#include "host.h"

enum { FIRST = 64 };

static struct {
    pthread_mutex_t lock;
    int fd; /* of the file that the rest is about; -1: none */
    unsigned char *taken;
    unsigned count, from; /* of slots; all below FROM are taken */
} slots = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

/* Allocated on disk, so that a slot can be written when nothing else fits. */
static int grow(struct fbc_error *error) {
    unsigned count = slots.count ? 2 * slots.count : FIRST;
    unsigned char *taken = realloc(slots.taken, count);
    if (!taken) {
        fbc_error_set(error, 0, "no memory for the slots of open transactions");
        return FBC_FAILED;
    }
    slots.taken = taken;
    int failed = posix_fallocate(slots.fd, 0, (off_t)count * FBC_SLOT);
    if (failed) {
        fbc_error_set(error, failed, "no room for open transactions in %.300s/.firebird-cdc/slots",
                      fbc_folder.path);
        return FBC_FAILED;
    }
    memset(taken + slots.count, 0, count - slots.count);
    slots.count = count;
    return FBC_OK;
}

/* Find a free one in the file of now; with the folder held. */
static int find(struct fbc_slot *slot, struct fbc_error *error) {
    if (slots.fd != fbc_folder.slots) {
        slots.fd = fbc_folder.slots;
        slots.count = slots.from = 0;
    }
    while (slots.from < slots.count && slots.taken[slots.from])
        slots.from++;
    if (slots.from == slots.count && !grow(error))
        return FBC_FAILED;
    *slot = (struct fbc_slot){slots.fd, slots.from};
    slots.taken[slots.from++] = 1;
    return FBC_OK;
}

static void give_back(const struct fbc_slot *slot) {
    pthread_mutex_lock(&slots.lock);
    if (slot->fd == slots.fd) {
        slots.taken[slot->index] = 0;
        if (slot->index < slots.from)
            slots.from = slot->index;
    }
    pthread_mutex_unlock(&slots.lock);
}

int fbc_slot_take(struct fbc_slot *slot, const struct fbc_database *database, uint64_t inode,
                  uint64_t transaction, int64_t begun_us, struct fbc_error *error) {
    unsigned char content[FBC_SLOT] = {0};
    size_t length = strlen(database->path);
    fbc_folder_hold();
    pthread_mutex_lock(&slots.lock);
    int found = find(slot, error);
    pthread_mutex_unlock(&slots.lock);
    fbc_folder_release();
    if (!found)
        return FBC_FAILED;
    fbc_put64(content, transaction);
    fbc_put64(content + 8, inode);
    fbc_put64(content + 16, (uint64_t)begun_us);
    memcpy(content + 24, database->guid, 16);
    memcpy(content + 40, fbc_folder.boot, 16);
    fbc_put16(content + 56, (uint16_t)length);
    memcpy(content + 58, database->path, length);
    ssize_t written = pwrite(slot->fd, content, 58 + length, (off_t)slot->index * FBC_SLOT);
    if (written == (ssize_t)(58 + length))
        return FBC_OK;
    fbc_error_set(error, written < 0 ? errno : ENOSPC, "cannot note an open transaction");
    give_back(slot);
    slot->fd = 0;
    return FBC_FAILED;
}

void fbc_slot_free(struct fbc_slot *slot) {
    static const char zeros[8];
    if (!slot->fd)
        return;
    if (pwrite(slot->fd, zeros, sizeof zeros, (off_t)slot->index * FBC_SLOT) == sizeof zeros)
        give_back(slot);
    else /* it stays taken, and is looked at once this process has ended */
        fbc_host_tell("an open transaction's slot can't be cleared");
    slot->fd = 0;
}
