/* Included before every source of a plugin that is built for tests (failing_syncs.py): each call
 * that syncs or writes asks power_recorder.c first whether it is to fail. It is told as FILE:LINE
 * CALL, from which sync_calls.py finds it in the source. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <errno.h> /* before the macros: none of these headers may meet them */
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
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

/* What writes: bytes, sizes and names. Of it nothing is done where it fails. */
#define WRITE_FAILS(text) FAILS(text, -1, 0)
#define write(...) (WRITE_FAILS("write(" #__VA_ARGS__ ")") ? -1 : write(__VA_ARGS__))
#define pwrite(...) (WRITE_FAILS("pwrite(" #__VA_ARGS__ ")") ? -1 : pwrite(__VA_ARGS__))
#define pwritev(...) (WRITE_FAILS("pwritev(" #__VA_ARGS__ ")") ? -1 : pwritev(__VA_ARGS__))
#define dprintf(...) (WRITE_FAILS("dprintf(" #__VA_ARGS__ ")") ? -1 : dprintf(__VA_ARGS__))
#define ftruncate(...) (WRITE_FAILS("ftruncate(" #__VA_ARGS__ ")") ? -1 : ftruncate(__VA_ARGS__))
#define fallocate(...) (WRITE_FAILS("fallocate(" #__VA_ARGS__ ")") ? -1 : fallocate(__VA_ARGS__))
#define posix_fallocate(...)                                                                       \
    (WRITE_FAILS("posix_fallocate(" #__VA_ARGS__ ")") ? errno : posix_fallocate(__VA_ARGS__))
#define renameat(...) (WRITE_FAILS("renameat(" #__VA_ARGS__ ")") ? -1 : renameat(__VA_ARGS__))
#define mkdirat(...) (WRITE_FAILS("mkdirat(" #__VA_ARGS__ ")") ? -1 : mkdirat(__VA_ARGS__))
#define FIRST_OF(first, ...) (first)
#define CREATES(...) (FIRST_OF(__VA_ARGS__, 0) & O_CREAT)
#define open(path, ...)                                                                            \
    (CREATES(__VA_ARGS__) && WRITE_FAILS("open(" #path ", " #__VA_ARGS__ ")")                      \
         ? -1                                                                                      \
         : open(path, __VA_ARGS__))
#define openat(folder, path, ...)                                                                  \
    (CREATES(__VA_ARGS__) && WRITE_FAILS("openat(" #folder ", " #path ", " #__VA_ARGS__ ")")       \
         ? -1                                                                                      \
         : openat(folder, path, __VA_ARGS__))
