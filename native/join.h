/* Joining the processes that work in a journal folder, without Python: under Classic each
 * connection is a process, and to start Python in it takes a third of a second. Where another
 * process confirms, a new one needs no bridge to record what it commits.
 *
 * What it has to know is in the file join in .firebird-cdc. A bridge writes it
 * (journal/folder/join_file.py, which reads this struct through cffi), complete or not at all. The
 * shipper removes it once nobody confirms any more. Whatever is doubtful about it, or about those
 * who confirm: the process starts a bridge of its own.
 */
#ifndef FIREBIRD_CDC_JOIN_H
#define FIREBIRD_CDC_JOIN_H

#include <stdint.h>

#include "bridge_api.h"
#include "host.h"

/* cffi reads from here */
enum { FBC_JOIN_VERSION = 2, FBC_JOIN_RECORD = 3072 };

/* Tells a file, or a folder, from the one before it at its path. */
struct fbc_identity {
    uint64_t device, inode;
    int64_t mtime_ns, size;
};

struct fbc_join {
    char magic[8];          /* FBCDCJOI */
    uint32_t version, size; /* of this struct */
    unsigned char boot[16];
    unsigned char publisher[16]; /* whose mark in owners/ is locked as long as it confirms */
    struct fbc_identity plugin;  /* file that the publisher has loaded */
    struct fbc_identity config;  /* connector's file that it has read */
    uint64_t folder_device, folder_inode, tickets_device, tickets_inode;
    uint64_t memory_bytes; /* as in struct fbc_workplace */
    uint64_t most_bytes;   /* connector.journal.max.bytes; 0: there is no limit */
    uint32_t transactions, is_synced, is_gap_mode;
    char record[FBC_JOIN_RECORD]; /* what servers/<uuid> says behind the process number */
    uint32_t crc;                 /* crc32c of all before it */
};
/* cffi reads to here */

/* fbc_join_init remembers which file the plugin was loaded from. */
void fbc_join_init(void);

/* fbc_join_plugin returns device, inode, time of change in ns and size of it; zeros if that can't
 * be told. */
const uint64_t *fbc_join_plugin(void);

/* fbc_join makes this process one that writes journals in the folder that the connector's file at
 * CONFIG names, and fills WORKPLACE, whose path goes to PATH and whose other pointers stay valid.
 * *MOST_BYTES: limit for all journals. Returns 0 if it needs a bridge for that; nothing is left
 * then. */
int fbc_join(const char *config, char *path, size_t path_size, struct fbc_workplace *workplace,
             uint64_t *most_bytes);

/* Who confirms for a process that has joined. */
enum fbc_confirmers { FBC_NOBODY, FBC_SHIPPER_ALONE, FBC_BRIDGE };

/* fbc_join_confirmers tells who does; a bridge counts while its process lives. */
enum fbc_confirmers fbc_join_confirmers(void);

#endif
