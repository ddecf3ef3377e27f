/* What the bridge sees of the plugin; read by the C compiler and, as it is, by cffi. */
#ifndef FIREBIRD_CDC_BRIDGE_API_H
#define FIREBIRD_CDC_BRIDGE_API_H
#include <stddef.h>
#include <stdint.h>
/* cffi reads from here */
enum fbc_event_kind {
    FBC_COMMITTED = 1,         /* commit() was called */
    FBC_DATABASE_SEEN = 2,     /* a session that writes there, the first or again the only one */
    FBC_DEAD_TRANSACTIONS = 3, /* the engine found some; transaction 0: all that a crash left */
    FBC_LAST_SESSION_LEFT = 4, /* the database may be closed, the process may end */
    FBC_GAPS_COUNTED = 5,      /* there is something to read with read_gap */
    FBC_ABANDONED = 6,         /* the engine let a transaction go without commit or rollback */
    FBC_DATABASE_LEFT = 7,     /* by the last session that wrote there; the process goes on */
    FBC_CALLED = 9,            /* a process without a bridge has committed */
    FBC_JOURNAL_LEFT = 8       /* nothing is appended to the shared journal HOME any more: all that
                                * is in it ends at OFFSET, and EVENTS transactions of that were
                                * committed; 0: somebody has to go through it */
};

struct fbc_event {
    uint32_t kind;     /* enum fbc_event_kind */
    uint32_t database; /* see database_path */
    uint64_t number;   /* grows by one with every event */
    uint64_t transaction;
    uint64_t ticket;           /* order of the commits */
    int64_t commit_us;         /* microseconds since 1970, UTC */
    uint64_t length;           /* bytes of the journal, its catalogue included */
    uint64_t catalogue_offset; /* of the completed definitions, 0: none */
    uint32_t has_ddl;          /* call new_generation once the commit is decided */
    uint32_t is_unresolved;    /* it has table definitions that are not complete */
    uint32_t is_unsynced;      /* its sync failed: it has to be copied, with a sync that works */
    uint32_t is_gap;           /* all that is in it is a gap, see `reason` */
    uint32_t is_unlisted;      /* its entry could not be written: no other process knows of it */
    uint64_t events;           /* changes in it */
    int32_t fd; /* of an abandoned journal, owned by the bridge, which keeps it locked
                 * until it is decided; else -1 */
    unsigned char uuid[16];
    unsigned char home[16]; /* the journal that it lies in; its own has its uuid */
    uint64_t offset;        /* there; places in it are relative to that */
    uint64_t seal_end;      /* end of its seal there */
    char reason[256];       /* of a gap, or of the failed sync; UTF-8 */
};

/* Transactions of one database that committed without leaving anything in the folder. */
struct fbc_gap {
    uint64_t count;
    int64_t first_us, last_us; /* when, since 1970, UTC */
    char reason[256];          /* of the first one; empty: another process knew it */
};

enum fbc_question_kind {
    FBC_COMPLETE = 1,    /* a table definition as a record shows it, from the system tables */
    FBC_KNOW_INDEXES = 2 /* one may be dropped: find out which are keys, unless that is known */
};

/* A question to the bridge; a transaction waits for the answer. */
struct fbc_question_view {
    uint64_t number;     /* for the answer */
    uint64_t generation; /* of the system tables when it was asked */
    uint32_t database;
    uint32_t kind;     /* enum fbc_question_kind */
    const char *shown; /* valid until it is answered */
    size_t length;
};

/* What journals that wait take on disk: docs/operations.md tells how exact that is. */
struct fbc_disk {
    uint64_t bytes;
    uint64_t refused; /* how often the limit refused something, ever */
    uint32_t is_full; /* the limit was reached, and enough room was not made since */
    uint32_t cost_ms; /* how long it took to measure them */
};

/* What the engine says of a call that failed: its codes, the first ones, and its words. */
struct fbc_failure {
    int32_t count;
    int32_t codes[8];
    char text[1024];
};

/* A journal folder; descriptors stay the bridge's, and open. */
struct fbc_workplace {
    const char *path;
    int32_t journals, making;        /* folders: of all, and where this process makes files */
    int32_t tickets, commits, slots; /* files */
    int32_t mark;                    /* this process's file in owners/, locked */
    int32_t is_synced;               /* journals are to survive a power cut */
    int32_t is_gap_mode;             /* connector.capture.failure.mode is gap */
    uint32_t transactions;      /* at most in a shared journal, 0: no limit; 1: none is shared */
    uint64_t memory_bytes;      /* of open transactions, beyond which they go to files early */
    const unsigned char *owner; /* 16 bytes: of the journals that this process makes */
    const unsigned char *boot;  /* 16 bytes: of the machine */
    void *page;                 /* a struct fbc_shared_page, mapped (shared_page.h) */
};

struct fbc_host_api {
    uint32_t size;    /* of this struct: the two sides were built apart */
    uint32_t version; /* FBC_BRIDGE_ABI, a checksum of these declarations (cffi_build.py) */

    const char *root; /* the server's root directory */

    /* Has the plugin work in a folder from now on. */
    void (*configure)(const struct fbc_workplace *workplace);
    /* Returns the last ticket drawn by any process. All up to it are marked in their journals
     * and, those of this process, handed over, or their process died in between. */
    uint64_t (*last_ticket)(void);
    /* Returns how many events were written to `to`, waiting up to timeout_ms for the first. */
    int (*take_events)(struct fbc_event *to, int most, int timeout_ms);
    /* All events up to this number are decided: sessions that wait may go. */
    void (*settle)(uint64_t number);
    /* Returns 1 and what is counted of a database's gaps, by all processes; 0: none. */
    int (*read_gap)(uint32_t database, struct fbc_gap *gap);
    /* Takes what was read off the counters; others may have counted on meanwhile. */
    void (*clear_gap)(uint32_t database, const struct fbc_gap *gap);
    const char *(*database_path)(uint32_t database);
    const unsigned char *(*database_guid)(uint32_t database);
    /* An attachment of ours (native/own_attachment.h): open, ask, close; answers 0 active, -1
     * limbo, -2 dead, -3 unknown, from 1 on committed. */
    void *(*attachment_open)(const char *database, char *error, int error_size);
    int (*attachment_ask)(void *own, const uint64_t *transactions, int64_t *answers, int count,
                          char *error, int error_size);
    /* Has all that is described and selected up to the end be of one state of the database, in one
     * transaction; 0 if that failed. */
    int (*attachment_begin_reading)(void *own, char *error, int error_size);
    void (*attachment_end_reading)(void *own);
    /* Completes a table definition in its buffer; returns its new length, 0 if the
     * table is gone, -1 if that failed; or a length and an error if only its defaults failed. */
    int (*attachment_describe)(void *own, char *definition, int length, int size, char *error,
                               int error_size);
    /* Asks about the system tables: rows of `columns` texts, each u16 length and bytes, 65535 for
     * NULL, in a buffer for attachment_free; 0 if that failed. */
    int (*attachment_select)(void *own, const char *select, int columns, char **rows,
                             size_t *length, char *error, int error_size);
    void (*attachment_free)(char *rows);
    void (*attachment_close)(void *own);
    /* Rows for a process that has no password (native/reading.h says what each of them does). */
    void *(*reading_attach)(const char *database, struct fbc_failure *failure);
    void *(*reading_stand)(const char *database, struct fbc_failure *failure);
    void (*reading_detach)(void *reading);
    void (*reading_cancel)(void *reading);
    void *(*reading_begin)(void *reading, const unsigned char *tpb, uint32_t length,
                           struct fbc_failure *failure);
    void (*reading_end)(void *reading, void *transaction);
    int (*reading_info)(void *reading, void *transaction, const unsigned char *items,
                        uint32_t count, unsigned char *answer, uint32_t size,
                        struct fbc_failure *failure);
    void *(*reading_prepare)(void *reading, void *transaction, const char *sql, uint32_t length,
                             unsigned char *shown, uint32_t size, uint32_t *used,
                             struct fbc_failure *failure);
    int (*reading_open)(void *reading, void *transaction, void *statement,
                        struct fbc_failure *failure);
    int64_t (*reading_fetch)(void *reading, void *statement, unsigned char *to, uint64_t size,
                             int32_t *is_end, struct fbc_failure *failure);
    void (*reading_free)(void *reading, void *statement);
    void *(*reading_open_blob)(void *reading, void *transaction, const unsigned char *id,
                               struct fbc_failure *failure);
    int64_t (*reading_blob_piece)(void *reading, void *blob, unsigned char *to, uint32_t size,
                                  int32_t *is_end, struct fbc_failure *failure);
    int64_t (*reading_blob_length)(void *reading, void *blob, struct fbc_failure *failure);
    void (*reading_close_blob)(void *reading, void *blob);
    /* 1: this process has its databases for itself (ServerMode = Super). */
    uint32_t is_super;
    /* Lets later transactions write the complete form of a definition at once. */
    void (*store_definition)(uint32_t database, uint64_t generation, const char *shown,
                             size_t shown_length, const char *complete, size_t length);
    /* Returns how many questions, all about one database, were written to `to`, waiting up to
     * timeout_ms for the first. Each has to be answered: commits wait for it. */
    int (*take_questions)(struct fbc_question_view *to, int most, int timeout_ms);
    /* Answers a question, for example with the complete form; length 0: there is none. No
     * attachment of ours may be open any more that was opened for it. */
    void (*answer_question)(uint64_t number, const char *complete, size_t length);
    int (*sync_file_system)(int fd); /* all of the file system that FD is on; 0 or -errno */
    void (*new_generation)(void);    /* the system tables changed: read shapes anew */
    int (*spawn)(const char *program, char *const arguments[], char *const environment[]);
    /* Sets connector.journal.max.bytes; 0: there is no limit. */
    void (*limit_disk)(uint64_t most);
    /* Measures the folder unless any process did within if_older_ms. */
    void (*measure_disk)(uint32_t if_older_ms, struct fbc_disk *disk);
    /* Has the next transaction start the bridge anew, because of REASON. */
    void (*fail)(const char *reason);
    /* Returns how many transactions may draw a ticket from the page's file though it is retired. */
    int (*count_prepared)(void);
    /* Returns 1 and where this process works without a bridge so far, in a folder that it has
     * joined (native/join.h); 0: it has not. */
    int (*joined)(struct fbc_workplace *workplace);
    /* Device, inode, time of change in ns and size of the plugin's file; zeros where no process is
     * to join: the server is not Classic. */
    uint64_t plugin[4];
};
/* cffi reads to here */

/* Starts the bridge. Returns 1, or 0 with a sentence in `error`: cffi answers 0 as well when
 * Python itself fails, then `error` is empty. */
typedef int (*fbc_bridge_start_function)(struct fbc_host_api *host, const char *connector_config,
                                         const char *logging_config, const char *python_dirs,
                                         char *error, int error_size);
#endif
