/* The journal folder that the bridge works in: its descriptors, and the files made there. */
#ifndef FIREBIRD_CDC_FOLDER_H
#define FIREBIRD_CDC_FOLDER_H

#include <stdint.h>
#include <sys/types.h>

#include "bridge_api.h"
#include "journal.h"
#include "shared_page.h"

/* Changed by a new start of the bridge only, between fbc_folder_hold_alone and
 * fbc_folder_release. Descriptors are the bridge's, and stay open. */
extern struct fbc_folder {
    char path[4096];
    dev_t device;
    ino_t inode;
    int journals,
        making; /* folders: of all, and where this process makes files; -1: there is none */
    int tickets, commits, slots; /* files */
    int is_synced;               /* journals are to survive a power cut */
    unsigned transactions;       /* at most in a shared journal, 0: no limit; 1: none is shared */
    unsigned char owner[16];     /* of the journals that this process makes */
    unsigned char boot[16];      /* of the machine */
    struct fbc_shared_page *_Atomic page;
} fbc_folder;

/* fbc_has_folder tells whether journals can be made at all: a bridge ran once. */
static inline int fbc_has_folder(void) {
    return fbc_folder.journals >= 0;
}

/* fbc_folder_hold keeps the folder from being changed, fbc_folder_hold_alone also from being
 * held. */
void fbc_folder_hold(void);
void fbc_folder_hold_alone(void);
void fbc_folder_release(void);

/* fbc_lock_file takes the lock of the file FD, against other processes, until flock(LOCK_UN). */
void fbc_lock_file(int fd);

/* fbc_folder_is_in_place tells whether the folder's path still leads to it, and why not. */
int fbc_folder_is_in_place(struct fbc_error *error);

/* fbc_folder_is tells whether FD is a descriptor of it. */
int fbc_folder_is(int fd);

/* fbc_folder_holds tells whether <name>.log.live in the folder is the file FD: it was removed, or
 * the folder was replaced since and the bridge works in another one. */
int fbc_folder_holds(int fd, const char *name, struct fbc_error *error);

/* fbc_folder_leads_to tells whether the folder's path leads to one where <name>.log.live is the
 * file with INODE on DEVICE: neither of both was removed or replaced. */
int fbc_folder_leads_to(const char *name, dev_t device, ino_t inode);

/* fbc_uuid_text writes UUID to TEXT, with dashes. */
void fbc_uuid_text(const unsigned char uuid[16], char text[40]);

/* fbc_journal_name gives a random UUID (version 4) and its text; returns 0 or an errno. */
int fbc_journal_name(char name[40], unsigned char uuid[16]);

/* fbc_folder_make_file creates a file that nobody looks for yet, and locks it: that says that its
 * process may write to it. -1, with errno, if that fails. fbc_folder_name_live gives it the name
 * <NAME>.log.live, IS_SYNCED: on disk; returns 0 or an errno. With the folder held. */
int fbc_folder_make_file(const char *name);
int fbc_folder_name_live(const char *name, int is_synced);

/* fbc_folder_take_journal makes the file <NAME>.log.live for one transaction, locked, with
 * FBC_OWN_BYTES allocated, so that a gap fits on a disk that is full by then; -1, with ERROR and
 * errno set, if that fails. Its name is not synced; *FOLDER, the caller's, is to be: a descriptor
 * from before it got that, or -1 if nothing is to survive a power cut. */
int fbc_folder_take_journal(const char *name, int *folder, struct fbc_error *error);

/* fbc_folder_make_ownerless creates <NAME>.log.live where no bridge ran yet, in the folder at PATH,
 * if that is there. *FOLDER is a descriptor of it, the caller's too. */
int fbc_folder_make_ownerless(const char *path, const char *name, int *folder,
                              struct fbc_error *error);

/* fbc_folder_name_again gives <NAME>.log.live, whose content is on disk, its name once more: of a
 * sync of names that has failed a later one knows nothing. Returns 0 once that is on disk, or an
 * errno. */
int fbc_folder_name_again(const char *name);

/* fbc_folder_discard_journal removes <name>.log.live; its descriptor stays the caller's. DURABLY:
 * it waits until no power cut can bring it back, and tells whether that is sure. */
int fbc_folder_discard_journal(const char *name, int durably);

/* fbc_folder_has_room tells whether connector.journal.max.bytes lets a transaction through that has
 * accounted for OWN bytes. */
int fbc_folder_has_room(uint64_t own, struct fbc_error *error);

/* fbc_folder_measure measures what journals take there unless somebody did within IF_OLDER_MS. */
void fbc_folder_measure(uint32_t if_older_ms, struct fbc_disk *disk);

#endif
