/* For whom files are made in a journal folder; see access.h. */
#define _GNU_SOURCE
#include "access.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

enum { OF_GROUP = S_ISGID | S_IRWXG };

static int is_shared(int folder) {
    struct stat status;
    return fstat(folder, &status) == 0 && (status.st_mode & OF_GROUP) == OF_GROUP;
}

void fbc_access_share(int folder, int fd) {
    struct stat made;
    /* Not by the mode it is made with: the server's mask may take the group's rights away. One of
     * another user is as that one has made it. */
    if (is_shared(folder) && fstat(fd, &made) == 0 && made.st_uid == geteuid() &&
        (made.st_mode & 0660) != 0660)
        (void)fchmod(fd, 0660);
}

int fbc_access_open(int folder, const char *name, int flags) {
    int fd = openat(folder, name, flags | O_CREAT | O_CLOEXEC, 0600);
    if (fd >= 0)
        fbc_access_share(folder, fd);
    return fd;
}

int fbc_access_make_folder(int folder, const char *name) {
    struct stat made;
    int shared = is_shared(folder);
    if (mkdirat(folder, name, shared ? 0770 : 0700) != 0)
        return -1;
    if (!shared || fstatat(folder, name, &made, AT_SYMLINK_NOFOLLOW) != 0 ||
        (made.st_mode & (OF_GROUP | S_IRWXU)) == (OF_GROUP | S_IRWXU))
        return 0;
    return fchmodat(folder, name, OF_GROUP | S_IRWXU, 0);
}
