/* The file that this plugin was loaded from, as it was called then. */
#ifndef FIREBIRD_CDC_OWN_FILE_H
#define FIREBIRD_CDC_OWN_FILE_H

#include <stddef.h>

/* fbc_own_file_init remembers the file; called once, when the engine loads the plugin. */
void fbc_own_file_init(void);

/* fbc_own_file returns its path, with no link in it where /proc can be read; empty: not known. */
const char *fbc_own_file(void);

/* fbc_own_version returns the folder of the version that this plugin is of, where versions lie
 * beside each other (firebird_cdc/tree.py): a process that has loaded it keeps to the Python in
 * there, whichever version is put to use by then. Empty: it is no part of one. */
const char *fbc_own_version(void);

/* fbc_beside_own_file writes "<folder of the file>/<part>" to PATH. */
void fbc_beside_own_file(const char *part, char *path, size_t size);

#endif
