/* Slots of open transactions; see slots.h and journal/folder/slots.py. */
#define _GNU_SOURCE
#include "slots.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "folder.h"

enum {
    FIRST = 8 /* a block: most connections of Classic need no more */,
    MOST = 64 * 1024,
    PATH_AT = 58
};

static struct {
    pthread_mutex_t lock;
    int fd;                 /* of the file that the rest is about; -1: none */
    unsigned char *content; /* room for the most, mapped for ever; COUNT of them are in the file */
    unsigned char *taken;
    unsigned count, from; /* of slots; all below FROM are taken */
} slots = {.lock = PTHREAD_MUTEX_INITIALIZER, .fd = -1};

/* Begin with the file of now; with the folder held. */
static int map(struct fbc_error *error) {
    void *content = mmap(NULL, (size_t)MOST * FBC_SLOT, PROT_READ | PROT_WRITE, MAP_SHARED,
                         fbc_folder.slots, 0);
    if (content == MAP_FAILED) {
        fbc_error_set(error, errno, "cannot map the slots in %.300s/.firebird-cdc/slots",
                      fbc_folder.path);
        return FBC_FAILED;
    }
    slots.fd = fbc_folder.slots;
    slots.content = content;
    slots.count = slots.from = 0;
    return FBC_OK;
}

/* Allocated on disk, so that a slot can be written when nothing else fits. */
static int grow(struct fbc_error *error) {
    unsigned count = slots.count ? 2 * slots.count : FIRST;
    unsigned char *taken = count <= MOST ? realloc(slots.taken, count) : NULL;
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
    size_t from = (size_t)slots.count * FBC_SLOT;
    mlock(slots.content + from, (size_t)count * FBC_SLOT - from); /* as the page of the tickets */
    memset(taken + slots.count, 0, count - slots.count);
    slots.count = count;
    return FBC_OK;
}

/* Find a free one in the file of now; with the folder held. */
static int find(struct fbc_slot *slot, struct fbc_error *error) {
    if (slots.fd != fbc_folder.slots && !map(error))
        return FBC_FAILED;
    while (slots.from < slots.count && slots.taken[slots.from])
        slots.from++;
    if (slots.from == slots.count && !grow(error))
        return FBC_FAILED;
    unsigned char *content = slots.content + (size_t)slots.from * FBC_SLOT;
    *slot = (struct fbc_slot){content, slots.fd, slots.from};
    slots.taken[slots.from++] = 1;
    return FBC_OK;
}

/* Last, or first of all: a slot counts if it names a transaction. */
static void set_transaction(struct fbc_slot *slot, uint64_t transaction) {
    atomic_store_explicit((_Atomic(uint64_t) *)(void *)slot->content, transaction,
                          memory_order_release);
}

int fbc_slot_take(struct fbc_slot *slot, const struct fbc_database *database, uint64_t inode,
                  uint64_t transaction, int64_t begun_us, struct fbc_error *error) {
    size_t length = strlen(database->path);
    fbc_folder_hold();
    pthread_mutex_lock(&slots.lock);
    int found = find(slot, error);
    pthread_mutex_unlock(&slots.lock);
    if (found)
        memcpy(slot->content + 40, fbc_folder.boot, 16);
    fbc_folder_release();
    if (!found)
        return FBC_FAILED;
    fbc_put64(slot->content + 8, inode);
    fbc_put64(slot->content + 16, (uint64_t)begun_us);
    memcpy(slot->content + 24, database->guid, 16);
    fbc_put16(slot->content + 56, (uint16_t)length);
    memcpy(slot->content + PATH_AT, database->path, length);
    set_transaction(slot, transaction);
    return FBC_OK;
}

void fbc_slot_free(struct fbc_slot *slot) {
    if (!slot->content)
        return;
    set_transaction(slot, 0);
    pthread_mutex_lock(&slots.lock);
    if (slot->fd == slots.fd) {
        slots.taken[slot->index] = 0;
        if (slot->index < slots.from)
            slots.from = slot->index;
    }
    pthread_mutex_unlock(&slots.lock);
    slot->content = NULL;
}
