/* For whom files are made in a journal folder: as firebird_cdc/access.py. */
#ifndef FIREBIRD_CDC_ACCESS_H
#define FIREBIRD_CDC_ACCESS_H

/* fbc_access_open opens the file NAME in FOLDER and makes it if it is missing: for the owner alone,
 * or for the group, too, where FOLDER is one that its group works in (mode 2770). FLAGS as for
 * open(2), to which O_CREAT and O_CLOEXEC are added. -1, with errno, if that fails. */
int fbc_access_open(int folder, const char *name, int flags);

/* fbc_access_share has the file FD, which is in FOLDER and of this user, be for the same. */
void fbc_access_share(int folder, int fd);

/* fbc_access_make_folder makes the folder NAME in FOLDER, likewise. 0, or -1 with errno. */
int fbc_access_make_folder(int folder, const char *name);

#endif
