/* Included before every source of a plugin that is built for tests (failing_syncs.py): each call
 * that syncs asks power_recorder.c first whether it is to fail. It is told as FILE:LINE CALL, from
 * which sync_calls.py finds it in the source. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

__attribute__((weak)) int power_fails(const char *call, int fd, int is_all);

#define TEXT_OF(line) #line
#define AT(line) __FILE__ ":" TEXT_OF(line) " "
#define FAILS(text, fd, is_all) (power_fails && power_fails(AT(__LINE__) text, fd, is_all))
#define fsync(fd) (FAILS("fsync(" #fd ")", fd, 0) ? -1 : fsync(fd))
#define fdatasync(fd) (FAILS("fdatasync(" #fd ")", fd, 0) ? -1 : fdatasync(fd))
#define syncfs(fd) (FAILS("syncfs(" #fd ")", fd, 1) ? -1 : syncfs(fd))
#define sync_file_range(fd, offset, length, flags)                                                 \
    (FAILS("sync_file_range(" #fd ", " #offset ", " #length ", " #flags ")", fd, 0)                \
         ? -1                                                                                      \
         : sync_file_range(fd, offset, length, flags))
#define msync(at, length, flags)                                                                   \
    (FAILS("msync(" #at ", " #length ", " #flags ")", -1, 0) ? -1 : msync(at, length, flags))
